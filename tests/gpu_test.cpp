// SPDX-License-Identifier: Apache-2.0
// tests: how the library behaves on a GPU beyond the numbers: graphs, streams, threads, devices, and calls that must be
// refused before anything is written.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "check/backends.hpp"
#include "check/gpu/session.hpp"
#include "src/base/text.hpp"

namespace froghopper::check {
namespace {

// A causal problem with its inputs on one GPU. o holds 0xff bytes, NaN, until a run writes it.
class OnGpu {
 public:
  explicit OnGpu(int ordinal = -1) {
    auto opened = GpuSession::open(ordinal);
    if (!opened) {
      missing = opened.failure().text;
      return;
    }
    gpu = std::move(*opened);
    const auto parsed = parse_case("fwd bf16 b2 hq4 hkv2 sq700 skv900 d64 causal");
    EXPECT_TRUE(parsed);
    inputs = make_inputs(*parsed, 1);
    const auto copies = upload(*gpu, *inputs);
    EXPECT_TRUE(copies) << copies.failure().text;
    tensors = copies->tensors;
    EXPECT_EQ(fh_problem_parse(parsed->problem.line().c_str(), &problem), FH_OK);
    EXPECT_EQ(fh_workspace_bytes(&problem, "hopper", &workspace_bytes), FH_OK) << fh_last_error();
    workspace = *gpu->allocate(workspace_bytes);
  }

  fh_status run(const char* target, void* stream) {
    return fh_attention(&problem, target, &tensors, workspace, workspace_bytes, stream);
  }
  // What o holds now; then it is NaN again.
  std::vector<unsigned char> take_o() {
    EXPECT_TRUE(gpu->finish());
    const size_t bytes = size_t{2} * 700 * 4 * 64 * 2;
    std::vector<unsigned char> o(bytes);
    const std::vector<unsigned char> nan(bytes, 0xff);
    EXPECT_TRUE(gpu->download(o.data(), tensors.o.data, bytes));
    EXPECT_TRUE(gpu->upload(tensors.o.data, nan.data(), bytes));
    return o;
  }
  bool o_is_untouched() { return take_o() == std::vector<unsigned char>(size_t{2} * 700 * 4 * 64 * 2, 0xff); }

  std::string missing;
  std::unique_ptr<GpuSession> gpu;
  std::unique_ptr<Inputs> inputs;
  size_t workspace_bytes = 0;
  fh_tensors tensors{};
  fh_problem problem = fh_problem_init();
  void* workspace = nullptr;
};

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    here = std::make_unique<OnGpu>();
    if (!here->gpu) GTEST_SKIP() << here->missing;
  }
  std::unique_ptr<OnGpu> here;
};

TEST_F(Gpu, a_graph_replays_to_the_same_bits) {
  // Captured before the kernel was ever used: loading it must not break the capture.
  const auto replay = here->gpu->capture([&]() -> Result<void> {
    const fh_status status = here->run("hopper", here->gpu->stream());
    if (status != FH_OK) return last_failure(status);
    return {};
  });
  ASSERT_TRUE(replay) << replay.failure().text;
  EXPECT_TRUE(here->o_is_untouched()) << "a captured call ran at once";

  ASSERT_EQ(here->run("hopper", here->gpu->stream()), FH_OK) << fh_last_error();
  const auto direct = here->take_o();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE((*replay)());
    EXPECT_EQ(here->take_o(), direct) << "replay " << i;
  }
}

TEST_F(Gpu, a_thread_without_a_context_can_run) {
  ASSERT_EQ(here->run("hopper", here->gpu->stream()), FH_OK) << fh_last_error();
  const auto direct = here->take_o();
  fh_status status = FH_INTERNAL;
  std::string why;
  std::thread([&] {
    status = here->run("hopper", here->gpu->stream());
    why = fh_last_error();
  }).join();
  ASSERT_EQ(status, FH_OK) << why;
  EXPECT_EQ(here->take_o(), direct);
}

TEST_F(Gpu, the_default_stream_will_do) {
  ASSERT_EQ(here->run("hopper", here->gpu->stream()), FH_OK) << fh_last_error();
  const auto direct = here->take_o();
  ASSERT_EQ(here->run("hopper", nullptr), FH_OK) << fh_last_error();
  EXPECT_EQ(here->take_o(), direct);  // the copy to the host waits for the default stream
}

TEST_F(Gpu, two_streams_do_not_disturb_each_other) {
  OnGpu other;
  ASSERT_EQ(here->run("hopper", here->gpu->stream()), FH_OK) << fh_last_error();
  const auto alone = here->take_o();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(here->run("hopper", here->gpu->stream()), FH_OK);
    ASSERT_EQ(other.run("hopper", other.gpu->stream()), FH_OK);
  }
  EXPECT_EQ(here->take_o(), alone);
  EXPECT_EQ(other.take_o(), alone);
}

struct BadCall {
  const char* name;
  void (*spoil)(OnGpu&);
  const char* says;
};

class GpuRefuses : public testing::TestWithParam<BadCall> {};

TEST_P(GpuRefuses, before_anything_is_written) {
  OnGpu here;
  if (!here.gpu) GTEST_SKIP() << here.missing;
  const fh_tensors good = here.tensors;
  GetParam().spoil(here);
  EXPECT_EQ(here.run("hopper", here.gpu->stream()), FH_INVALID_TENSOR) << fh_last_error();
  EXPECT_NE(std::string(fh_last_error()).find(GetParam().says), std::string::npos) << fh_last_error();
  here.tensors = good;
  EXPECT_TRUE(here.o_is_untouched());
}

INSTANTIATE_TEST_SUITE_P(
    Calls, GpuRefuses,
    testing::Values(
        BadCall{"host_memory", [](OnGpu& x) { x.tensors.k.data = x.inputs->block(&Views::k).data(); }, "host memory"},
        BadCall{"a_misaligned_address", [](OnGpu& x) { x.tensors.v.data = static_cast<char*>(x.tensors.v.data) + 2; },
                "16 bytes"},
        BadCall{"a_stride_that_TMA_cannot_take", [](OnGpu& x) { x.tensors.k.stride_seq += 3; }, "multiple of 8"},
        BadCall{"no_workspace", [](OnGpu& x) { x.workspace = nullptr; }, "workspace is NULL"},
        BadCall{"a_workspace_in_host_memory",
                [](OnGpu& x) { x.workspace = reinterpret_cast<void*>(uintptr_t{4096}); }, "workspace"}),
    [](const auto& info) { return info.param.name; });

// R36: the GPU is the one that holds the tensors, whatever is current.
TEST_F(Gpu, tensors_on_another_gpu_are_computed_there) {
  OnGpu second(1);
  if (!second.gpu) GTEST_SKIP() << second.missing;
  ASSERT_EQ(here->run("hopper:0", here->gpu->stream()), FH_OK) << fh_last_error();
  const auto first = here->take_o();
  ASSERT_EQ(second.run("hopper:1", second.gpu->stream()), FH_OK) << fh_last_error();
  EXPECT_EQ(second.take_o(), first);
  ASSERT_EQ(second.run("hopper:0", nullptr), FH_OK) << fh_last_error();  // planned for one, tensors on the other
  EXPECT_EQ(second.take_o(), first);
}

TEST_F(Gpu, tensors_on_two_gpus_are_refused) {
  OnGpu second(1);
  if (!second.gpu) GTEST_SKIP() << second.missing;
  here->tensors.v.data = second.tensors.v.data;
  EXPECT_EQ(here->run("hopper", here->gpu->stream()), FH_INVALID_TENSOR);
  EXPECT_NE(std::string(fh_last_error()).find("v is on GPU 1"), std::string::npos) << fh_last_error();
  EXPECT_TRUE(here->o_is_untouched());
  EXPECT_NE(second.run("hopper", here->gpu->stream()), FH_OK) << "a stream of the other GPU";
}

// On the GPU a block repeats its piece as it does in host memory.
TEST_F(Gpu, pieces_of_inputs_to_measure_are_repeated) {
  const auto parsed = parse_case("fwd bf16 b1 hq2 hkv2 sq1 skv20000 d128");
  ASSERT_TRUE(parsed);
  const auto to_measure = make_inputs_to_measure(*parsed, 1);
  const size_t k = index_of(&Views::k);
  ASSERT_FALSE(to_measure->pieces[k].empty());
  const auto copies = upload(*here->gpu, *to_measure);
  ASSERT_TRUE(copies) << copies.failure().text;
  ASSERT_TRUE(here->gpu->finish());
  repeat_pieces(*to_measure);
  Inputs::Block found(to_measure->blocks[k].size());
  ASSERT_TRUE(here->gpu->download(found.data(), copies->begins[k], found.size()));
  EXPECT_TRUE(found == to_measure->blocks[k]);
}

}  // namespace
}  // namespace froghopper::check
