// SPDX-License-Identifier: Apache-2.0
// tests: gradients of what a model computed for a text (data/README.md), in the shape that was wrong elsewhere with
// such numbers only: 16 query heads of 256 columns on 2 key heads, two sequences (R7 of docs/known-failures.md).
#include "check/check.hpp"
#include "src/base/storage.hpp"
#include "tests/support/program.hpp"

namespace froghopper::files {
namespace {

constexpr int sequences = 2, rows = 200, columns = 256;

class Activations : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    auto model = read_safetensors(FROGHOPPER_SOURCE_DIR "/data/minilm_alice.safetensors");
    ASSERT_TRUE(model) << model.failure().text;
    TensorFile in;
    in.tensors["q"] = heads_of(model->tensors.at("q"), 16, 0);
    in.tensors["k"] = heads_of(model->tensors.at("k"), 2, 0);
    in.tensors["v"] = heads_of(model->tensors.at("v"), 2, 0);
    in.tensors["grad_o"] = heads_of(model->tensors.at("v"), 16, 1);
    write("in.safetensors", print_safetensors(in));
  }

  // The model has 3 layers [rows, 12 heads of 32 columns]. A head here is 8 of the model's, which follow one another
  // in a circle, so that numbers that belong together stay together. Sequence b is layer b + first_layer.
  static FileTensor heads_of(const FileTensor& model, int heads, int first_layer) {
    EXPECT_EQ(model.shape, (std::vector<int64_t>{3, 470, 12, 32}));
    constexpr int all = 12 * 32;
    FileTensor out{Element::bf16, {sequences, rows, heads, columns}, {}};
    const auto* const from = reinterpret_cast<const uint16_t*>(model.bytes.data());
    for (int64_t b = 0; b < sequences; ++b)
      for (int64_t row = 0; row < rows; ++row)
        for (int head = 0; head < heads; ++head)
          for (int column = 0; column < columns; ++column) {
            const int64_t layer = (b + first_layer) % 3, at = (head * 32 * (16 / heads) + column) % all;
            const uint16_t x = float_to_bf16(f16_to_float(from[(layer * 470 + row) * all + at]));
            out.bytes.push_back(x & 255), out.bytes.push_back(x >> 8);
          }
    return out;
  }

  void expect_right_gradients(const std::string& backend) const {
    const Ran r = run("attend " + path("in.safetensors") + " -o " + path("out.safetensors") +
                      " --causal --check --backend " + backend);
    ASSERT_EQ(r.code, 0) << r.out << r.err;
    EXPECT_TRUE(has(r.out, "bwd bf16 b2 hq16 hkv2 sq200 skv200 d256 causal\n"));
    for (const char* const gradient : {"grad_q", "grad_k", "grad_v"}) EXPECT_TRUE(has(r.out, gradient));
    EXPECT_TRUE(has(r.out, ": right\n"));
  }
};

TEST_F(Activations, have_right_gradients_on_cpu) { expect_right_gradients("cpu"); }

TEST_F(Activations, have_right_gradients_on_hopper) {
  if (const auto here = check::hopper_is_here(); !here) GTEST_SKIP() << here.failure().text;
  expect_right_gradients("hopper");
}

}  // namespace
}  // namespace froghopper::files
