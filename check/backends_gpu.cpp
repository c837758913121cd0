// SPDX-License-Identifier: Apache-2.0
// check: a plan run on a GPU. Every block of the inputs, guard zones and NaN included, is copied there and back, so
// that what is checked of host memory afterwards holds for the GPU's.
#include <algorithm>
#include <cstring>

#include "check/backends.hpp"
#include "src/base/text.hpp"

namespace froghopper::check {

namespace {

// One plan on one GPU: the inputs, and a workspace with guard zones.
class Runs {
 public:
  // p: whose written tensors reset() shall set back; nullptr: none.
  static Result<Runs> prepare(GpuSession& gpu, const fh_plan* plan, const Inputs& in, const Problem* p = nullptr) {
    auto inputs = upload(gpu, in);
    if (!inputs) return inputs.failure();
    Runs runs(gpu, plan, std::move(*inputs));
    for (size_t i = 0; p && i < in.blocks.size(); ++i) {
      const Use use = tensors()[i].use(*p);
      if (!is_written(use) || in.blocks[i].empty()) continue;
      runs.written_.push_back({i, in.blocks[i].size(), use == Use::added_to ? in.blocks[i] : Inputs::Block{}});
    }
    const auto memory = gpu.allocate(runs.workspace_image_.size());
    if (!memory) return memory.failure();
    runs.workspace_ = static_cast<unsigned char*>(*memory);
    const auto copied = gpu.upload(*memory, runs.workspace_image_.data(), runs.workspace_image_.size());
    if (!copied) return copied.failure();
    return runs;
  }

  // Into the stream.
  Result<void> call() {
    const fh_status status =
        fh_plan_run(plan_, &inputs_.tensors, workspace_ + workspace_guard_bytes, bytes_, gpu_.stream());
    if (status != FH_OK) return last_failure(status);
    return {};
  }
  // What is written is again as it was before the first run: NaN, or what is added to.
  Result<void> reset() {
    for (const auto& [i, bytes, block] : written_) {
      auto done = block.empty() ? gpu_.fill(begin(i), 0xff, bytes) : gpu_.upload(begin(i), block.data(), bytes);
      if (!done) return done;
    }
    return {};
  }
  Result<void> fill_workspace(unsigned char byte) {
    return gpu_.fill(workspace_ + workspace_guard_bytes, byte, bytes_);
  }
  Result<void> guards() {
    const auto copied = gpu_.download(workspace_image_.data(), workspace_, workspace_image_.size());
    if (!copied) return copied;
    if (guards_intact(workspace_image_, bytes_)) return {};
    return Failure{FH_INTERNAL, "memory next to the workspace was written."};
  }
  // All blocks: of tensors that are only read too, to see that they are as before.
  Result<void> download(Inputs& in) {
    for (size_t i = 0; i < in.blocks.size(); ++i) {
      if (in.blocks[i].empty()) continue;
      const auto copied = gpu_.download(in.blocks[i].data(), inputs_.begins[i], in.blocks[i].size());
      if (!copied) return copied;
    }
    return {};
  }
  void* begin(size_t i) const { return inputs_.begins[i]; }

 private:
  Runs(GpuSession& gpu, const fh_plan* plan, OnGpu inputs)
      : gpu_(gpu), plan_(plan), inputs_(std::move(inputs)), bytes_(fh_plan_workspace_bytes(plan)) {
    workspace_image_ = garbage_workspace(bytes_);
  }

  GpuSession& gpu_;
  const fh_plan* plan_;
  OnGpu inputs_;
  size_t bytes_;
  unsigned char* workspace_ = nullptr;
  std::vector<unsigned char> workspace_image_;
  struct Written {
    size_t tensor, bytes;
    Inputs::Block before;  // empty: bytes 0xff
  };
  std::vector<Written> written_;
};

// Where the GPU's copy of a block differs from the host's: a byte, or the block's size. In pieces, since blocks of
// several GiB exist.
Result<size_t> first_difference(GpuSession& gpu, const Inputs::Block& block, const void* on_gpu) {
  constexpr size_t piece_bytes = size_t{64} << 20;
  std::vector<unsigned char> piece(std::min(piece_bytes, block.size()));
  for (size_t at = 0; at < block.size(); at += piece.size()) {
    const size_t bytes = std::min(piece.size(), block.size() - at);
    const auto copied = gpu.download(piece.data(), static_cast<const unsigned char*>(on_gpu) + at, bytes);
    if (!copied) return copied.failure();
    if (std::memcmp(piece.data(), block.data() + at, bytes) == 0) continue;
    return at +
           static_cast<size_t>(std::mismatch(piece.begin(), piece.end(), block.begin() + at).first - piece.begin());
  }
  return block.size();
}

// Compares what is written with the first result in the blocks. "" or what differs.
Result<std::string> compare_with_first(GpuSession& gpu, const Runs& runs, const Problem& p, const Inputs& first,
                                       const char* way) {
  for (size_t i = 0; i < first.blocks.size(); ++i) {
    if (!is_written(tensors()[i].use(p)) || first.blocks[i].empty()) continue;
    const auto at = first_difference(gpu, first.blocks[i], runs.begin(i));
    if (!at) return at.failure();
    if (*at < first.blocks[i].size())
      return text("{} differs from the first run {}, at byte {} of its block: results must be bit-equal",
                  tensors()[i].name, way, *at);
  }
  return std::string();
}

Result<std::string> run_in_other_ways(GpuSession& gpu, Runs& runs, const Problem& p, Inputs& in,
                                      const std::function<std::string()>& look) {
  const auto replay = gpu.capture([&] { return runs.call(); });
  if (!replay) return replay.failure();
  const auto from_other_garbage = [&]() -> Result<void> {
    if (auto filled = runs.fill_workspace(0x5a); !filled) return filled;
    return runs.call();
  };
  const std::pair<const char*, std::function<Result<void>()>> ways[] = {
      {"when a graph replays it", *replay},
      {"when a graph replays it twice", *replay},
      {"from other garbage in the workspace", from_other_garbage}};
  for (const auto& [way, work] : ways) {
    if (auto reset = runs.reset(); !reset) return reset.failure();
    if (auto ran = work(); !ran) return ran.failure();
    if (auto done = gpu.finish(); !done) return done.failure();
    if (bit_equal(p)) {
      auto differs = compare_with_first(gpu, runs, p, in, way);
      if (!differs || !differs->empty()) return differs;
    } else {
      if (auto copied = runs.download(in); !copied) return copied.failure();
      if (const std::string why = look(); !why.empty()) return text("{}: {}", way, why);
    }
  }
  return std::string();
}

// Fills GPU memory with the piece, from which each copy makes twice as much.
Result<void> repeat(GpuSession& gpu, unsigned char* to, size_t bytes, const Inputs::Block& piece) {
  size_t done = std::min(bytes, piece.size());
  if (auto copied = gpu.upload(to, piece.data(), done); !copied) return copied;
  for (size_t more = 0; done < bytes; done += more) {
    more = std::min(done, bytes - done);
    if (auto copied = gpu.copy(to + done, to, more); !copied) return copied;
  }
  return {};
}

}  // namespace

Result<OnGpu> upload(GpuSession& gpu, const Inputs& in) {
  OnGpu copies;
  copies.begins.resize(in.blocks.size());
  for (size_t i = 0; i < in.blocks.size(); ++i) {
    const Inputs::Block& block = in.blocks[i];
    if (block.empty()) continue;
    const auto memory = gpu.allocate(block.size());
    if (!memory) return memory.failure();
    const Inputs::Block& piece = in.pieces[i];
    auto copied = piece.empty() ? gpu.upload(*memory, block.data(), block.size())
                                : repeat(gpu, static_cast<unsigned char*>(*memory), block.size(), piece);
    if (!copied) return copied.failure();
    copies.begins[i] = *memory;
  }
  copies.tensors = in.at(copies.begins);
  return copies;
}

Result<void> hopper_is_here() {
  const auto gpu = GpuSession::open();
  if (!gpu) return gpu.failure();
  return {};
}

Result<std::vector<double>> run_on_gpu(const fh_plan* plan, Inputs& in, int repeats) {
  const auto session = GpuSession::open();
  if (!session) return session.failure();
  GpuSession& gpu = **session;
  auto runs = Runs::prepare(gpu, plan, in);
  if (!runs) return runs.failure();
  std::vector<double> ms;
  for (int i = 0; i < repeats; ++i) {
    const auto took = gpu.time([&] { return runs->call(); });
    if (!took) return took.failure();
    ms.push_back(*took);
  }
  if (auto copied = runs->download(in); !copied) return copied.failure();
  if (auto intact = runs->guards(); !intact) return intact.failure();
  return ms;
}

Result<std::string> run_in_many_ways_on_gpu(const fh_plan* plan, const Problem& p, Inputs& in,
                                            const std::function<std::string()>& look) {
  const auto session = GpuSession::open();
  if (!session) return session.failure();
  GpuSession& gpu = **session;
  auto runs = Runs::prepare(gpu, plan, in, &p);
  if (!runs) return runs.failure();

  auto ran = runs->call();
  if (auto done = gpu.finish(); ran && !done) ran = done;  // a fault of the kernel breaks all that follows
  // Also after a refusal, so that the caller sees whether it wrote anything.
  const auto copied = runs->download(in);
  if (!ran) return ran.failure();
  if (!copied) return copied.failure();

  // From here on a failure is a wrong result: the plan has run.
  if (!bit_equal(p))
    if (std::string why = look(); !why.empty()) return why;
  const auto again = run_in_other_ways(gpu, *runs, p, in, look);
  if (!again) return again.failure().text;
  if (auto intact = runs->guards(); !intact) return intact.failure().text;
  return *again;
}

}  // namespace froghopper::check
