// SPDX-License-Identifier: Apache-2.0
// tests: a call on the CPU touches no byte before the first and none after the last element of a tensor. Each tensor
// lies at the end of a mapping, then at the begin of one, and the page next to it can be neither read nor written
// (R35). Of a GPU's memory compute-sanitizer says the same: `scripts/gpu sanitizer`.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "check/backends.hpp"
#include "check/blocks.hpp"
#include "tests/support/case_lines.hpp"

namespace froghopper::check {
namespace {

enum class Edge { begin, end };

// Bytes with a page that faults directly before the first, or directly after the last of them.
class Mapping {
 public:
  Mapping(size_t bytes, Edge edge) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (bytes + page - 1) / page * page;
    length_ = inside + 2 * page;
    all_ = mmap(nullptr, length_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all_ == MAP_FAILED) return;
    auto* const first = static_cast<unsigned char*>(all_) + page;
    if (inside == 0 || mprotect(first, inside, PROT_READ | PROT_WRITE) == 0)
      data_ = edge == Edge::begin ? first : first + (inside - bytes);
  }
  ~Mapping() {
    if (all_ != MAP_FAILED) munmap(all_, length_);
  }
  Mapping(Mapping&& other) noexcept : all_(other.all_), length_(other.length_), data_(other.data_) {
    other.all_ = MAP_FAILED;
  }
  Mapping& operator=(Mapping&&) = delete;

  unsigned char* data() const { return data_; }  // nullptr: there is no such memory

 private:
  void* all_;
  size_t length_;
  unsigned char* data_ = nullptr;
};

constexpr size_t workspace_alignment = 256;  // what fh_plan_run asks for

// Runs the plan with every tensor of the inputs, and the workspace, at the edge of a mapping of its own. Ends the
// process with 0 if what is written is the same as in `expected`.
[[noreturn]] void run_at(Edge edge, const fh_plan* plan, const Problem& p, const Inputs& in, const Inputs& expected) {
  std::vector<Mapping> mappings;
  std::vector<void*> begins;  // of the blocks, whose guard zones would lie beyond the mappings
  for (const Inputs::Block& block : in.blocks) {
    const size_t bytes = block.empty() ? 0 : block.size() - 2 * guard_bytes;
    mappings.emplace_back(bytes, edge);
    unsigned char* const data = mappings.back().data();
    if (!data) _exit(2);
    if (bytes > 0) std::memcpy(data, block.data() + guard_bytes, bytes);
    begins.push_back(data - guard_bytes);
  }
  const size_t bytes = fh_plan_workspace_bytes(plan);
  const Mapping workspace((bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment, edge);
  const fh_tensors tensors = in.at(begins);
  if (fh_plan_run(plan, &tensors, workspace.data(), bytes, nullptr) != FH_OK) _exit(3);
  for (size_t i = 0; i < in.blocks.size(); ++i) {
    const Inputs::Block& block = expected.blocks[i];
    if (!is_written(froghopper::tensors()[i].use(p)) || block.empty()) continue;
    if (std::memcmp(mappings[i].data(), block.data() + guard_bytes, block.size() - 2 * guard_bytes) != 0) _exit(4);
  }
  _exit(0);
}

// What became of a process that does this: "0", the number it ended with; or "signal 11".
template <class Work>
std::string in_a_process(const Work& work) {
  const pid_t child = fork();
  if (child == 0) work(), _exit(0);
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child) return "no process";
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status)) : std::to_string(WEXITSTATUS(status));
}

// Enough to do for several tiles, and little enough for a test that runs each case three times.
bool is_small(const Problem& p) {
  const double rows = double(p.batch) * double(p.heads_q);
  return rows * double(p.seq_q) * double(std::max<int64_t>(p.seq_kv, 1)) * double(p.dim_qk + p.dim_v) < 4e7;
}

TEST(Edges, OfAMappingFault) {
  const Mapping first(100, Edge::begin), last(100, Edge::end);
  const auto read = [](const volatile unsigned char* at) { return *at; };
  EXPECT_EQ(in_a_process([&] { read(first.data()); }), "0");
  EXPECT_EQ(in_a_process([&] { read(last.data() + 99); }), "0");
  EXPECT_EQ(in_a_process([&] { read(first.data() - 1); }), "signal 11");
  EXPECT_EQ(in_a_process([&] { read(last.data() + 100); }), "signal 11");
}

class EdgesOf : public testing::TestWithParam<int> {};
constexpr int shares = 8;

TEST_P(EdgesOf, NothingBeyondTensorsIsTouched) {
  int number = 0, ran = 0;
  for (const test::Line& line : test::case_lines(/*backward=*/false)) {
    auto parsed = parse_case(line.text);
    ASSERT_TRUE(parsed) << line.text;
    for (const fh_op op : {parsed->problem.op, FH_BACKWARD}) {
      Case c = *parsed;
      if (op == FH_BACKWARD && (c.problem.op != FH_FORWARD || !test::has_gradients(line.text))) continue;
      c.problem.op = op;
      if (number++ % shares != GetParam() || c.only == "gpu" || !is_small(c.problem)) continue;
      const auto plan = create_plan(c.problem, "cpu");
      if (!plan) continue;  // tests/cases has some that only GPUs run
      const auto in = make_inputs(c, 1, FirstPass::missing);
      Inputs expected = *in;
      expected.tensors = in->at([&] {
        std::vector<void*> begins;
        for (Inputs::Block& block : expected.blocks) begins.push_back(block.data());
        return begins;
      }());
      ASSERT_TRUE(run_on_cpu(plan->get(), expected)) << c.line();
      for (const Edge edge : {Edge::end, Edge::begin}) {
        if (edge == Edge::begin && ran % 4 != 0)
          continue;  // nothing counts backwards, and each process takes its time
        EXPECT_EQ(in_a_process([&] { run_at(edge, plan->get(), c.problem, *in, expected); }), "0")
            << c.line() << (edge == Edge::begin ? ", begins of mappings" : ", ends of mappings");
      }
      ++ran;
    }
  }
  EXPECT_GT(ran, 100);
}

INSTANTIATE_TEST_SUITE_P(Cases, EdgesOf, testing::Range(0, shares));

}  // namespace
}  // namespace froghopper::check
