// SPDX-License-Identifier: Apache-2.0
// Claims: the table of tensors says shape and use of each; every option demands its tensors and refuses others.
#include <string>

#include "tests/support/somewhere.hpp"

namespace froghopper {
namespace {

using namespace test;

std::string shape_of(const Problem& p, const Tensor& tensor) {
  const Shape s = tensor.shape(p);
  return std::to_string(s.batch) + " " + std::to_string(s.seq) + " " + std::to_string(s.heads) + " " +
         std::to_string(s.dim) + " " + name_of(s.element);
}

struct Row {
  const char *name, *shape;
  Use forward, backward;
};

TEST(table, says_shape_and_use_of_every_tensor) {
  const std::string everything = "b3 hq8 hkv2 sq100 skv200 d64 dv128 varlen tq250 tkv500 seqused sink alibi gate";
  const Problem fwd = problem_of("fwd f16 " + everything), bwd = problem_of("bwd f16 " + everything);
  const Row with_everything[] = {{"q", "1 250 8 64 fp16", Use::read, Use::read},
                                 {"k", "1 500 2 64 fp16", Use::read, Use::read},
                                 {"v", "1 500 2 128 fp16", Use::read, Use::read},
                                 {"o", "1 250 8 128 fp16", Use::written, Use::read},
                                 {"lse", "1 250 8 1 fp32", Use::may_write, Use::read},
                                 {"cu_seqlens_q", "1 4 1 1 int32", Use::read, Use::read},
                                 {"cu_seqlens_kv", "1 4 1 1 int32", Use::read, Use::read},
                                 {"seqused_q", "1 3 1 1 int32", Use::may_read, Use::may_read},
                                 {"seqused_kv", "1 3 1 1 int32", Use::may_read, Use::may_read},
                                 {"sink", "1 1 8 1 fp32", Use::read, Use::read},
                                 {"grad_o", "1 250 8 128 fp16", Use::absent, Use::read},
                                 {"grad_q", "1 250 8 64 fp16", Use::absent, Use::written},
                                 {"grad_k", "1 500 2 64 fp16", Use::absent, Use::written},
                                 {"grad_v", "1 500 2 128 fp16", Use::absent, Use::written},
                                 {"grad_lse", "1 250 8 1 fp32", Use::absent, Use::may_read},
                                 {"grad_sink", "1 1 8 1 fp32", Use::absent, Use::written},
                                 {"scale_q", "3 1 8 1 fp32", Use::absent, Use::absent},
                                 {"scale_k", "3 1 2 1 fp32", Use::absent, Use::absent},
                                 {"scale_v", "3 1 2 1 fp32", Use::absent, Use::absent},
                                 {"quantised_q", "1 250 8 64 fp16", Use::absent, Use::absent},
                                 {"quantised_k", "1 500 2 64 fp16", Use::absent, Use::absent},
                                 {"quantised_v", "1 500 2 128 fp16", Use::absent, Use::absent},
                                 {"mean_k", "3 1 2 64 fp32", Use::absent, Use::absent},
                                 {"mean_v", "3 1 2 128 fp32", Use::absent, Use::absent},
                                 {"alibi_slopes", "3 1 8 1 fp32", Use::read, Use::read},
                                 {"max_logit", "3 1 8 1 fp32", Use::absent, Use::absent},
                                 {"block_table", "3 0 1 1 int32", Use::absent, Use::absent},
                                 {"cache_k", "1 500 2 64 fp16", Use::absent, Use::absent},
                                 {"cache_v", "1 500 2 128 fp16", Use::absent, Use::absent},
                                 {"q_out", "1 250 8 64 fp16", Use::absent, Use::absent},
                                 {"slot_mapping", "1 250 1 1 int64", Use::absent, Use::absent},
                                 {"positions", "1 250 1 1 int64", Use::absent, Use::absent},
                                 {"rotary_cos", "1 0 1 0 bf16", Use::absent, Use::absent},
                                 {"rotary_sin", "1 0 1 0 bf16", Use::absent, Use::absent},
                                 {"norm_q", "1 1 1 64 bf16", Use::absent, Use::absent},
                                 {"norm_k", "1 1 1 64 bf16", Use::absent, Use::absent},
                                 {"gate", "1 250 8 128 fp16", Use::read, Use::read},
                                 {"grad_gate", "1 250 8 128 fp16", Use::absent, Use::written},
                                 {"o_sum", "1 250 8 128 fp32", Use::absent, Use::absent}};
  ASSERT_EQ(tensors().size(), std::size(with_everything)) << "a new tensor needs a row here";
  for (size_t i = 0; i < tensors().size(); ++i) {
    const Tensor& tensor = tensors()[i];
    EXPECT_STREQ(tensor.name, with_everything[i].name);
    EXPECT_EQ(shape_of(bwd, tensor), with_everything[i].shape) << tensor.name;
    EXPECT_EQ(tensor.use(fwd), with_everything[i].forward) << tensor.name;
    EXPECT_EQ(tensor.use(bwd), with_everything[i].backward) << tensor.name;
    EXPECT_EQ(index_of(tensor.view), i) << tensor.name;
  }
  const Problem plain = problem_of(batched);
  EXPECT_EQ(shape_of(plain, tensors()[index_of(&Views::v)]), "2 200 2 128 bf16");
  EXPECT_EQ(shape_of(plain, tensors()[index_of(&Views::lse)]), "2 100 8 1 fp32");
  for (const Tensor& tensor : tensors())
    EXPECT_EQ(tensor.use(plain) == Use::absent, *tensor.option != '\0') << tensor.name;
  const Problem paged = problem_of("fwd f16 b3 hq8 hkv2 sq100 skv200 d64 dv128 varlen tq250 seqused page16 pages50");
  EXPECT_EQ(shape_of(paged, tensors()[index_of(&Views::q)]), "1 250 8 64 fp16");
  EXPECT_EQ(shape_of(paged, tensors()[index_of(&Views::v)]), "50 16 2 128 fp16");
  EXPECT_EQ(shape_of(paged, tensors()[index_of(&Views::block_table)]), "3 13 1 1 int32");
}

// What is added to is f32, so that small gradients are not lost beside a large sum.
TEST(table, gradients_that_are_added_to_are_f32) {
  const Problem p = problem_of("bwd bf16 b2 hq8 hkv2 sq100 skv200 d64 sink acc");
  for (View Views::*gradient : {&Views::grad_q, &Views::grad_k, &Views::grad_v, &Views::grad_sink}) {
    const Tensor& tensor = tensors()[index_of(gradient)];
    EXPECT_EQ(tensor.shape(p).element, Element::f32) << tensor.name;
    EXPECT_EQ(tensor.use(p), Use::added_to) << tensor.name;
    EXPECT_TRUE(is_written(tensor.use(p)) && is_demanded(tensor.use(p)));
  }
  EXPECT_EQ(tensors()[index_of(&Views::grad_o)].shape(p).element, Element::bf16);
}

// What a tensor's field gives is what was set, and nothing else of the struct changes.
TEST(table, fields_are_apart) {
  for (const Tensor& tensor : tensors()) {
    fh_tensors t = fh_tensors_init();
    tensor.field.set(t, {somewhere<void>(3), 5, 6, 7});
    for (const Tensor& other : tensors()) {
      const fh_tensor given = other.field.get(t);
      EXPECT_EQ(given.data != nullptr, &other == &tensor) << tensor.name << ' ' << other.name;
      if (&other == &tensor && tensor.field.strided()) { EXPECT_EQ(given.stride_seq, 6) << tensor.name; }
    }
  }
}

// Each option by itself: a tensor that it demands may not be missing, and none may be there without it.
TEST(table, every_option_demands_its_tensors_and_refuses_others) {
  for (const std::string option : {"fwd",
                                   "fwd varlen tq250 tkv500",
                                   "fwd seqused",
                                   "fwd sink",
                                   "bwd",
                                   "bwd sink",
                                   "bwd acc",
                                   "bwd varlen tq250 tkv500 acc sink",
                                   "fwd kv=e4m3 scales128",
                                   "fwd maxlogit",
                                   "fwd varlen tq250 tkv500 acc maxlogit",
                                   "fwd alibi",
                                   "bwd alibi",
                                   "fwd gate",
                                   "bwd varlen tq250 tkv500 gate sink",
                                   "fwd kv=e4m3",
                                   "fwd kv=e4m3 smooth",
                                   "fwd seqused page16 pages50",
                                   "fwd varlen tq250 page16 pages50",
                                   "fwd kv=e4m3 page1 pages50",
                                   "fwd kv=e5m2 vcolumns smooth",
                                   "fwd kv=e4m3 scales128 varlen tq250 tkv500 smooth seqused"}) {
    const Problem p = problem_of(option.substr(0, 3) + " bf16 b2 hq8 hkv2 sq100 skv200 d64" + option.substr(3));
    for (const Tensor& tensor : tensors()) {
      fh_tensors t = tensors_of(p);
      ASSERT_TRUE(bind(p, t)) << option;
      const Use use = tensor.use(p);
      const bool demanded = is_demanded(use);
      tensor.field.set(t, use == Use::absent ? fh_tensor{somewhere<void>(40), 0, 0, 0} : fh_tensor{});
      const auto views = bind(p, t);
      // Of seqused_q and seqused_kv one is enough; tensors_of gives the second.
      const bool the_only_one = tensor.view == &Views::seqused_kv && use == Use::may_read;
      EXPECT_EQ(static_cast<bool>(views), !demanded && use != Use::absent && !the_only_one) << option << tensor.name;
      if (!views) { EXPECT_EQ(views.failure().text.find(tensor.name) == std::string::npos, false) << tensor.name; }
    }
  }
}

// Every address of every element lies where strides and extents say.
TEST(table, views_find_their_rows) {
  View x{.data = somewhere<void>(1), .element = Element::bf16, .batch = 2, .seq = 3, .heads = 4, .dim = 8};
  x.stride_batch = 1000, x.stride_seq = 100, x.stride_head = 10;
  EXPECT_EQ(x.at(1, 2, 3), 1230);
  EXPECT_EQ(x.address(1, 2, 3), somewhere<char>(1) + 2460);
}

}  // namespace
}  // namespace froghopper
