// SPDX-License-Identifier: Apache-2.0
// Claims: without a driver every entry says so and how to go on; tensors become the TMA maps that
// src/runtime/tensor_map.cpp describes or are refused in the user's words; a variant becomes a cubin, once
// (docs/6-jit.md).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>

#include "contract/mask.h"
#include "src/plan/plan.hpp"
#include "src/runtime/compiler_report.hpp"
#include "src/runtime/driver.hpp"
#include "src/runtime/modules.hpp"
#include "src/runtime/nvrtc.hpp"
#include "src/runtime/params/params.hpp"
#include "src/runtime/params/shared.hpp"
#include "src/runtime/runtime.hpp"
#include "src/runtime/tensor_map.hpp"
#include "tests/support/dense_view.hpp"
#include "tests/support/planned.hpp"

namespace froghopper::runtime {
namespace {

using test::planned;

// ---- Without a driver -------------------------------------------------------------------------------------------

class WithoutDriver : public testing::Test {
 protected:
  void SetUp() override {
    if (driver()) GTEST_SKIP() << "there is a driver here";
  }
  static void expect_refused(const Failure& failure) {
    EXPECT_EQ(failure.status, FH_NO_DEVICE);
    EXPECT_NE(failure.text.find("NVIDIA driver"), std::string::npos) << failure.text;
    EXPECT_NE(failure.text.find("target \"cpu\""), std::string::npos) << failure.text;
  }
};

TEST_F(WithoutDriver, every_entry_says_so) {
  const Plan plan = planned("fwd bf16 b1 hq1 hkv1 sq64 skv64 d64");
  const auto one = device(-1), two = device(0);
  ASSERT_FALSE(one);
  expect_refused(one.failure());
  ASSERT_FALSE(two);
  expect_refused(two.failure());
  const auto prepared = prepare(plan, 0);
  ASSERT_FALSE(prepared);
  expect_refused(prepared.failure());
  const auto launched = launch(plan, Views{}, nullptr, nullptr);
  ASSERT_FALSE(launched);
  expect_refused(launched.failure());
  EXPECT_EQ(current_gpu(), -1);
  EXPECT_EQ(gpu_of(&plan), -1);
}

TEST_F(WithoutDriver, info_has_text_for_everything) {
  const Info facts = info();
  EXPECT_NE(facts.driver.find("NVIDIA driver"), std::string::npos) << facts.driver;
  for (const std::string* text : {&facts.nvrtc, &facts.serves, &facts.cache}) EXPECT_FALSE(text->empty());
  EXPECT_TRUE(facts.gpus.empty());
}

// ---- Tensor maps ------------------------------------------------------------------------------------------------

using test::view;

TEST(tensor_map, of_fixed_lengths_is_the_view) {
  const auto shape = fixed_shape({"q", view(2, 100, 3, 80)}, 128, nullptr);
  ASSERT_TRUE(shape) << shape.failure().text;
  EXPECT_EQ(shape->rank, 4u);
  EXPECT_EQ(std::vector<uint64_t>(shape->extents, shape->extents + 4), (std::vector<uint64_t>{80, 100, 3, 2}));
  EXPECT_EQ(std::vector<uint64_t>(shape->strides, shape->strides + 3), (std::vector<uint64_t>{480, 160, 48000}));
  EXPECT_EQ(std::vector<uint32_t>(shape->box, shape->box + 4), (std::vector<uint32_t>{64, 128, 1, 1}));
}

TEST(tensor_map, takes_any_stride_where_the_extent_is_one) {
  View one = view(1, 1, 1, 64);
  one.stride_batch = 3, one.stride_seq = 1, one.stride_head = 77;  // as a tensor of other shape, sliced, has them
  const auto shape = fixed_shape({"k", one}, 64, nullptr);
  ASSERT_TRUE(shape) << shape.failure().text;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(shape->strides[i] % 16, 0u);
}

TEST(tensor_map, of_an_empty_tensor_stands_on_another_address) {
  View none = view(2, 0, 3, 64);
  none.data = nullptr;
  View absurd = none;  // nobody reads the strides of what is empty
  absurd.stride_batch = INT64_MAX, absurd.stride_seq = -1, absurd.stride_head = (int64_t{1} << 61) + 3;
  const int elsewhere = 0;
  for (const View& v : {none, absurd})
    for (const auto& shape : {fixed_shape({"k", v}, 64, &elsewhere), ragged_shape({"k", v}, 64, &elsewhere)}) {
      ASSERT_TRUE(shape) << shape.failure().text;
      EXPECT_EQ(shape->address, &elsewhere);
      for (uint32_t i = 0; i < shape->rank; ++i) EXPECT_GE(shape->extents[i], 1u);
      for (uint32_t i = 0; i + 2 < shape->rank; ++i) EXPECT_TRUE(shape->strides[i] % 16 == 0) << i;
    }
}

struct Misfit {
  const char* text;  // of the message, from its beginning
  std::function<void(View&)> change;
};

TEST(tensor_map, refuses_what_the_hardware_cannot_read) {
  const Misfit misfits[] = {
      {"k.data must be a multiple of 16 bytes, but is 0x10008.",
       [](View& v) { v.data = reinterpret_cast<void*>(0x10008); }},
      {"k.stride_seq is 130 elements (260 bytes); TMA reads rows at multiples of 16 bytes. Use a multiple of 8 ",
       [](View& v) { v.stride_seq = 130; }},
      {"k.stride_head is 68 elements (136 bytes); TMA reads", [](View& v) { v.stride_head = 68; }},
      {"k.stride_batch is 1001 elements (2002 bytes); TMA reads", [](View& v) { v.stride_batch = 1001; }},
      {"k.stride_batch is 549755813888 elements; TMA takes strides below 2^39",
       [](View& v) { v.stride_batch = int64_t{1} << 39; }},
  };
  for (const auto& [text, change] : misfits) {
    View changed = view(2, 100, 3, 64);
    change(changed);
    const auto shape = fixed_shape({"k", changed}, 64, nullptr);
    ASSERT_FALSE(shape) << text;
    EXPECT_EQ(shape.failure().status, FH_INVALID_TENSOR);
    EXPECT_EQ(shape.failure().text.substr(0, std::strlen(text)), text);
  }
}

TEST(tensor_map, refuses_ragged_strides_beyond_its_trick) {
  View broadcast = view(2, 100, 3, 64);
  broadcast.stride_seq = 0;
  const auto no_rows = ragged_shape({"v", broadcast}, 64, nullptr);
  ASSERT_FALSE(no_rows);
  EXPECT_EQ(no_rows.failure().text.substr(0, 26), "v.stride_seq must be from ");
  View apart = view(1000, 100, 3, 64);
  apart.stride_batch = (int64_t{1} << 33) + 8;
  const auto too_far = ragged_shape({"v", apart}, 64, nullptr);
  ASSERT_FALSE(too_far);
  EXPECT_EQ(too_far.failure().text.substr(0, 30), "v.stride_batch is 8589934600 a");
  EXPECT_TRUE(too_far.failure().text.ends_with("Make stride_batch a multiple of stride_seq."));
  View one_page = view(1, 4, 3, 64);
  EXPECT_TRUE(check_page_rows({"v", one_page}));
  one_page.stride_seq = int64_t{1} << 30;
  EXPECT_EQ(check_page_rows({"v", one_page}).failure().text.substr(0, 29), "v.stride_seq is 1073741824 an");
  View table = view(3, 100, 1, 1);
  EXPECT_TRUE(check_table(table));
  table.stride_seq = int64_t{1} << 25;
  EXPECT_EQ(check_table(table).failure().text.substr(0, 36), "block_table.stride_seq is 33554432, ");
}

// What the hardware does with the coordinates the kernel gives it: address modulo 2^64, and whether it is inside.
struct Access {
  uint64_t offset;
  bool inside;
};

Access access(const MapShape& shape, const int64_t (&at)[5]) {
  Access result{static_cast<uint64_t>(at[0]) * 2, true};
  for (int i = 0; i < 5; ++i) {
    result.inside = result.inside && at[i] >= 0 && static_cast<uint64_t>(at[i]) < shape.extents[i];
    if (i > 0) result.offset += static_cast<uint64_t>(at[i]) * shape.strides[i - 1];
  }
  return result;
}

TEST(tensor_map, of_ragged_lengths_ends_where_each_sequence_ends) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t batch = random() % 3 + 1, seq = random() % 500 + 2, heads = random() % 4 + 1, dim = 64;
    View v = view(batch, seq, heads, dim);
    v.stride_seq += random() % 5 * 8;
    v.stride_batch = batch > 1 ? seq * v.stride_seq + static_cast<int64_t>(random() % 5) * 8 : 0;
    const auto shape = ragged_shape({"k", v}, 64, nullptr);
    ASSERT_TRUE(shape) << shape.failure().text;
    const int64_t sequence = random() % batch, length = random() % (seq + 1), head = random() % heads;
    const int64_t row = random() % seq;
    const bool packed = batch == 1;
    const int64_t first = packed ? random() % (seq - length + 1) : 0;  // of the sequence, in the packed tensor
    const int64_t first_granule = packed ? first * shape->granules.row : sequence * shape->granules.batch;
    const int64_t end = map_rows;
    const int64_t at[5] = {3, end - length + row, head, first_granule + length * shape->granules.row, end};
    for (const int64_t coordinate : at) EXPECT_LT(coordinate, int64_t{1} << 31);
    const auto [offset, inside] = access(*shape, at);
    EXPECT_EQ(inside, row < length);
    EXPECT_EQ(offset, static_cast<uint64_t>(
                          2 * (sequence * v.stride_batch + (first + row) * v.stride_seq + head * v.stride_head + 3)));
    for (uint32_t i = 0; i + 1 < shape->rank; ++i) {
      EXPECT_EQ(shape->strides[i] % 16, 0u);
      EXPECT_LT(shape->strides[i], uint64_t{1} << 40);
    }
  }
}

// ---- The kernel's argument --------------------------------------------------------------------------------------

FwdParams params_of(const Plan& plan, const Views& views = {}, char* workspace = nullptr) {
  return plain_params({plan, views, workspace, 7}, std::get<ForwardStep>(plan.launches.at(0).step));
}

TEST(fwd_params, say_what_the_problem_says) {
  const Plan plan = planned("fwd f16 b2 hq8 hkv2 sq100 skv200 d128 window64,3 topleft scale0.5 sink");
  float sink[8] = {}, lse[2 * 8 * 100] = {};
  char workspace[8];
  Views views;
  views.o = {.element = Element::f16, .stride_batch = 1000, .stride_seq = 100, .stride_head = 10};
  views.lse = view_of(tensors()[index_of(&Views::lse)], plan.problem, {lse, 0, 0, 0});
  views.sink = view_of(tensors()[index_of(&Views::sink)], plan.problem, {sink, 0, 0, 0});
  const FwdParams params = params_of(plan, views, workspace);
  EXPECT_EQ(params.heads_q, 8);
  EXPECT_EQ(params.heads_per_kv, 4);
  EXPECT_EQ(params.seq_q, 100);
  EXPECT_EQ(params.seq_kv, 200);
  EXPECT_EQ(params.mask.left, 64);
  EXPECT_EQ(params.mask.right, 3);
  EXPECT_EQ(params.mask.top_left, 1);
  EXPECT_EQ(params.o.batch, 2000);
  EXPECT_EQ(params.o.row, 200);
  EXPECT_EQ(params.o.head, 20);
  EXPECT_EQ(params.lse.data, lse);
  EXPECT_EQ(params.lse.batch, 800);
  EXPECT_EQ(params.lse.head, 100);
  EXPECT_EQ(params.sink, sink);
  EXPECT_FLOAT_EQ(params.scale_log2, 0.5f * 1.44269504f);
  EXPECT_EQ(params.order, std::get<ForwardStep>(plan.launches[0].step).order);
  EXPECT_EQ(params.queue.counter, nullptr) << "short items, and a CTA for each";
}

TEST(fwd_params, have_a_counter_where_tickets_are_fetched) {
  for (const char* const line :
       {"fwd f16 b16 hq8 hkv8 sq100 skv2000 d128", "fwd f16 b200 hq8 hkv8 sq100 skv200 d128"}) {
    const Plan plan = planned(line);
    char workspace[8];
    EXPECT_EQ(static_cast<void*>(params_of(plan, {}, workspace).queue.counter), workspace) << plan.line();
  }
}

// The second launch of a mixed step begins while the first one runs, but not where a run may have so many SMs.
TEST(fwd_params, of_a_mixed_step_let_the_second_launch_begin_early) {
  const std::string line = "fwd bf16 b4 hq8 hkv2 sq300 skv3000 d128 varlen tq620 seqused causal page16 pages900";
  for (const auto& [words, overlaps] : {std::pair{"", true}, {" sms7", false}}) {
    const Plan plan = planned(line + words);
    ASSERT_GE(plan.launches.size(), 2u) << plan.line();
    const FwdParams first = params_of(plan);
    const FwdParams second = plain_params({plan, {}, nullptr, 7}, std::get<ForwardStep>(plan.launches[1].step));
    EXPECT_FALSE(first.overlaps_another);
    EXPECT_EQ(second.overlaps_another, overlaps);
    EXPECT_EQ(second.rows.most + 1, first.rows.least);
  }
}

TEST(fwd_params, have_no_bound_where_the_window_has_none) {
  const FwdParams params = params_of(planned("fwd bf16 b1 hq1 hkv1 sq100 skv100 d64"));
  EXPECT_EQ(params.mask.left, no_bound<int>);
  EXPECT_EQ(params.mask.right, no_bound<int>);
}

TEST(fwd_params, turn_the_softcap_into_powers_of_two) {
  const FwdParams params = params_of(planned("fwd bf16 b1 hq1 hkv1 sq100 skv100 d64 scale0.25 softcap30"));
  // The kernel: 2^(scale_log2 tanh), tanh = 1 - 2 / (2^(s cap_scale) + 1), for a score s before scaling.
  for (const double s : {-500.0, -3.0, 0.0, 1.0, 77.0}) {
    const double tanh = 1 - 2 / (std::exp2(s * params.cap_scale) + 1);
    EXPECT_NEAR(params.scale_log2 * tanh, 30 * std::tanh(0.25 * s / 30) * std::log2(std::exp(1.0)), 1e-4) << s;
  }
  for (const float s : {-74.f, 1.f, 74.f})
    EXPECT_NEAR(tanh_of(s, params.softcap), std::tanh(0.25 * s / 30), 1e-6) << s;
  EXPECT_NEAR(params.softcap.bound, 75, 1e-5);
}

TEST(params, have_another_tag_for_every_run) {
  const unsigned first = next_tag(), second = next_tag();
  EXPECT_NE(first, second);
  EXPECT_NE(first, 0u);
  EXPECT_NE(second, 0u);
}

// ---- Compiling --------------------------------------------------------------------------------------------------

TEST(compiler_report, gives_registers_stack_and_spills) {
  const KernelFacts facts = facts_of(
      "ptxas info    : Compiling entry function 'fh_kernel' for 'sm_90a'\n"
      "ptxas         .     48 bytes stack frame, 76 bytes spill stores, 108 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers\n");
  EXPECT_EQ(facts.registers, 168);
  EXPECT_EQ(facts.stack_bytes, 48);
  EXPECT_EQ(facts.spill_store_bytes, 76);
  EXPECT_EQ(facts.spill_load_bytes, 108);
  EXPECT_EQ(facts.serialised, 0);
}

TEST(compiler_report, notices_serialised_wgmma) {
  EXPECT_EQ(
      facts_of("ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized "
               "due to insufficient register resources\n")
          .serialised,
      1);
}

FwdVariant small_variant() {
  FwdVariant v{};
  v.dtype = v.kv.dtype = Dtype::bf16, v.dims = {64, 64}, v.tiles = {64, 32, 2}, v.mask = Mask::none;
  return v;
}
const KernelSpec no_preset = kernel_of(small_variant());

// A cache of its own and the compiler of the build, so that nothing of this machine matters.
class CompileTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(FROGHOPPER_BUILD_NVRTC)) GTEST_SKIP() << "no NVRTC was found when this was built";
    std::string name = (std::filesystem::temp_directory_path() / "froghopper-runtime-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
    setenv("FROGHOPPER_CACHE", folder.c_str(), 1);
    setenv("FROGHOPPER_NVRTC", FROGHOPPER_BUILD_NVRTC, 1);
  }
  void TearDown() override {
    for (const char* name : {"FROGHOPPER_CACHE", "FROGHOPPER_NVRTC", "FROGHOPPER_LINE_INFO"}) unsetenv(name);
    if (!folder.empty()) std::filesystem::remove_all(folder);
  }
  std::string folder;
};

TEST_F(CompileTest, compiles_once_then_finds_it_on_disk) {
  const auto first = kernel_bytes(no_preset, 0);
  ASSERT_TRUE(first) << first.failure().text;
  EXPECT_EQ(first->origin.substr(0, 6), "nvrtc ");
  const auto kernel = unpack(first->packed);
  ASSERT_TRUE(kernel);
  EXPECT_EQ(kernel->facts.smem_bytes, no_preset.smem_bytes);
  EXPECT_EQ(kernel->facts.params_bytes, no_preset.params_bytes);

  const auto second = kernel_bytes(no_preset, 0);
  ASSERT_TRUE(second) << second.failure().text;
  EXPECT_EQ(second->origin, "disk cache");
  EXPECT_EQ(second->packed, first->packed);

  const auto file = std::filesystem::directory_iterator(folder)->path();
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  const auto third = kernel_bytes(no_preset, 0);
  ASSERT_TRUE(third) << third.failure().text;
  EXPECT_EQ(third->origin, first->origin) << "a torn file is made again";
}

TEST_F(CompileTest, has_a_key_for_everything_that_changes_the_code) {
  const auto compiler = Compiler::open(FROGHOPPER_BUILD_NVRTC);
  ASSERT_TRUE(compiler) << compiler.failure().text;
  std::map<std::string, std::string> keys;  // key -> variant
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16})
    for (const Mask mask : {Mask::none, Mask::causal, Mask::window})
      for (const bool ragged : {false, true})
        for (const bool softcap : {false, true})
          for (const int dim : {64, 128}) {
            FwdVariant variant = small_variant();
            variant.dtype = variant.kv.dtype = dtype, variant.mask = mask, variant.ragged = ragged,
            variant.score_mods.softcap = softcap;
            variant.dims.qk = dim;
            const KernelSpec spec = kernel_of(variant);
            const auto [at, fresh] = keys.emplace(compiler->key(spec).hex(), spec.name);
            EXPECT_TRUE(fresh) << at->second << " and " << spec.name;
            EXPECT_EQ(compiler->key(spec), compiler->key(spec));
          }
}

TEST_F(CompileTest, says_what_to_install_where_there_is_no_compiler) {
  setenv("FROGHOPPER_NVRTC", "/nowhere/libnvrtc.so", 1);
  const auto newer = kernel_bytes(no_preset, 13000), older = kernel_bytes(no_preset, 12040);
  ASSERT_FALSE(newer);
  EXPECT_EQ(newer.failure().status, FH_COMPILE_FAILED);
  EXPECT_NE(newer.failure().text.find("pip install nvidia-cuda-nvrtc,"), std::string::npos) << newer.failure().text;
  EXPECT_NE(newer.failure().text.find("/nowhere/libnvrtc.so"), std::string::npos) << newer.failure().text;
  ASSERT_FALSE(older);
  EXPECT_NE(older.failure().text.find("pip install nvidia-cuda-nvrtc-cu12,"), std::string::npos);
}

TEST_F(CompileTest, leaves_a_compiler_alone_that_is_newer_than_the_driver) {
  const auto compiler = find_compiler(12040);
  ASSERT_FALSE(compiler);
  EXPECT_NE(compiler.failure().text.find("needs a driver of CUDA 13"), std::string::npos) << compiler.failure().text;
}

TEST_F(CompileTest, gives_line_numbers_where_they_are_wanted) {
  const auto plain = kernel_bytes(no_preset, 0);
  setenv("FROGHOPPER_LINE_INFO", "1", 1);
  const auto with_lines = kernel_bytes(no_preset, 0);
  ASSERT_TRUE(plain && with_lines);
  EXPECT_EQ(plain->packed.find(".debug_line"), std::string::npos);
  EXPECT_NE(with_lines->packed.find(".debug_line"), std::string::npos);
}

}  // namespace
}  // namespace froghopper::runtime
