// SPDX-License-Identifier: Apache-2.0
// tests: what froghopper attend refuses: with the words of the file and of the command line, and with a way out.
#include <sys/stat.h>

#include "tests/support/program.hpp"

namespace froghopper::files {
namespace {

class AttendRefuses : public Program {};

TEST_F(AttendRefuses, numbers_that_it_cannot_hold) {
  write("in.safetensors", print_safetensors(small_file()));
  const std::string paths = path("in.safetensors") + " --backend cpu -o " + path("out.safetensors");
  struct Wrong {
    const char *option, *says;
  };
  for (const auto& [option, says] :
       {Wrong{"--scale 1e-60", "1e-60 is out of the range of a float, 1e-45 to 3.4e38. Use one within."},
        {"--scale 1e60", "1e60 is out of the range of a float"},
        {"--scale nan", "nan is not positive and finite. Use a positive number, or leave it out."},
        {"--scale -1", "-1 is not positive and finite"},
        {"--scale 1x", "1x is not a number. Write it in digits, as 0.125."},
        {"--softcap 1e-60", "1e-60 is out of the range of a float, 1e-45 to 3.4e38. Use one within."},
        {"--window 99999999999999999999,0", "99999999999999999999 is out of the range"},
        {"--window 0,99999999999999999999", "99999999999999999999 is out of the range"},
        {"--window 7", "7 is one number; LEFT,RIGHT are two. Write both, as in 512,0."},
        {"--window 1,2,3", "2,3 is not a number. Write it in digits, as 512."}}) {
    const Ran r = run(std::string("attend ") + option + " " + paths);
    EXPECT_EQ(r.code, 2) << option;
    EXPECT_TRUE(has(r.err, says));
    EXPECT_FALSE(std::filesystem::exists(path("out.safetensors"))) << option;
  }
  const Ran r = run("attend --scale 1e-40 --softcap +2.5 --window 1,2 " + paths);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, " window1,2 scale1e-40 softcap2.5\n"));
}

// None of them leaves an output.
TEST_F(AttendRefuses, what_does_not_fit) {
  struct Wrong {
    const char* says;
    void (*spoil)(TensorFile&);
  };
  const Wrong all[] = {
      {"no tensor v", [](TensorFile& f) { f.tensors.erase("v"); }},
      {"k is fp16 and q is fp32",
       [](TensorFile& f) {
         f.tensors["k"] = ones(Element::f16, {1, 3, 2, 8});
       }},
      {"q must be fp16, bf16 or fp32, but is int32",
       [](TensorFile& f) {
         for (auto& [name, tensor] : f.tensors) tensor = ones(Element::i32, {1, 3, 2, 8});
       }},
      {"q must be [batch, seq, heads, dim] or [seq, heads, dim], but has 2 extents",
       [](TensorFile& f) {
         f.tensors["q"] = ones(Element::f32, {3, 16});
       }},
      {"k has 3 rows and v has 4; a key has one value. Give them equally many.",
       [](TensorFile& f) {
         f.tensors["v"] = ones(Element::f32, {1, 4, 2, 8});
       }},
      {"k has 2 heads and v has 1",
       [](TensorFile& f) {
         f.tensors["v"] = ones(Element::f32, {1, 3, 1, 8});
       }},
      {"q has 16 columns and k has 8",
       [](TensorFile& f) {
         f.tensors["q"] = ones(Element::f32, {1, 3, 2, 16});
       }},
      {"2, 1 and 1 sequences; each sequence has all three. Give them equally many.",
       [](TensorFile& f) {
         f.tensors["q"] = ones(Element::f32, {2, 3, 2, 8});
       }},
      {"heads_kv is 2 and heads_q is 3",
       [](TensorFile& f) {
         f.tensors["q"] = ones(Element::f32, {1, 3, 3, 8});
       }},
      {"q must be [total, heads, dim] with cu_seqlens, but has 4 extents",
       [](TensorFile& f) { f.tensors["cu_seqlens"] = ones(Element::i32, {2}); }},
      {"sink must be fp32 with 2 numbers, one for each query head, but is fp32 with 3 numbers. Convert it, or give "
       "it as many.",
       [](TensorFile& f) { f.tensors["sink"] = ones(Element::f32, {3}); }},
      {"grad_o must be fp32 [1, 3, 2, 8], as o is, but is fp32 [1, 3, 2, 16]. Give grad_o the type and the shape of "
       "o.",
       [](TensorFile& f) {
         f.tensors["grad_o"] = ones(Element::f32, {1, 3, 2, 16});
       }},
      {"there is a grad_lse, but no grad_o",
       [](TensorFile& f) {
         f.tensors["grad_lse"] = ones(Element::f32, {1, 2, 3});
       }},
      {"seqused_q must have 1 number, one for each sequence, but has 2. Give it as many.",
       [](TensorFile& f) { f.tensors["seqused_q"] = ones(Element::i32, {2}); }},
      {"cu_seqlens[0] is 1; the first sequence begins at row 0.",
       [](TensorFile& f) {
         for (auto& [name, tensor] : f.tensors) tensor = ones(Element::f32, {3, 2, 8});
         f.tensors["cu_seqlens"] = ones(Element::i32, {2});
       }},
      {"cu_seqlens_q[2] is 4, but q has 3 rows; no sequence ends after the last one. Use 0 to 3.",
       [](TensorFile& f) {
         for (auto& [name, tensor] : f.tensors) tensor = ones(Element::f32, {3, 2, 8});
         f.tensors["cu_seqlens_q"] = {Element::i32, {3}, Bytes(12, 0)};
         f.tensors["cu_seqlens_q"].bytes[8] = 4;
         f.tensors["cu_seqlens_kv"] = {Element::i32, {3}, Bytes(12, 0)};
       }},
      {"cu_seqlens falls from 3 to 2 at entry 2; sequences lie end to end. Let it rise.",
       [](TensorFile& f) {
         for (auto& [name, tensor] : f.tensors) tensor = ones(Element::f32, {3, 2, 8});
         f.tensors["cu_seqlens"] = {Element::i32, {3}, Bytes(12, 0)};
         f.tensors["cu_seqlens"].bytes[4] = 3, f.tensors["cu_seqlens"].bytes[8] = 2;
       }},
      {"cu_seqlens_kv[0] is 1; the first sequence begins at row 0.",
       [](TensorFile& f) {
         for (auto& [name, tensor] : f.tensors) tensor = ones(Element::f32, {3, 2, 8});
         f.tensors["cu_seqlens"] = {Element::i32, {2}, Bytes(8, 0)};
         f.tensors["cu_seqlens_kv"] = ones(Element::i32, {2});
       }},
      {"k must have the rows of q, 3, where cu_seqlens is for both, but has 5. Write a .safetensors with "
       "cu_seqlens_q",
       [](TensorFile& f) {
         for (auto& [name, tensor] : f.tensors) tensor = ones(Element::f32, {name == "q" ? 3 : 5, 2, 8});
         f.tensors["cu_seqlens"] = {Element::i32, {2}, Bytes(8, 0)};
       }},
      {"there is no cu_seqlens_kv, but one for the other side. Add it, or name the one cu_seqlens, for both.",
       [](TensorFile& f) {
         for (auto& [name, tensor] : f.tensors) tensor = ones(Element::f32, {3, 2, 8});
         f.tensors["cu_seqlens_q"] = {Element::i32, {2}, Bytes(8, 0)};
       }},
      {"cu_seqlens has 2 numbers and cu_seqlens_kv has 3; both have one more than there are sequences.",
       [](TensorFile& f) {
         for (auto& [name, tensor] : f.tensors) tensor = ones(Element::f32, {3, 2, 8});
         f.tensors["cu_seqlens"] = {Element::i32, {2}, Bytes(8, 0)};
         f.tensors["cu_seqlens_kv"] = {Element::i32, {3}, Bytes(12, 0)};
       }},
      {"attend does not take block_table, so it would be ignored; of a file it takes q, k, v, ",
       [](TensorFile& f) {
         f.tensors["block_table"] = ones(Element::i32, {1, 1});
       }},
      {"attend does not take lse, so it would be ignored",
       [](TensorFile& f) {
         f.tensors["lse"] = ones(Element::f32, {1, 2, 3});
       }},
      {"cu_seqlens must be int32 or int64, but is fp32. Convert it.",
       [](TensorFile& f) {
         for (auto& [name, tensor] : f.tensors) tensor = ones(Element::f32, {3, 2, 8});
         f.tensors["cu_seqlens"] = ones(Element::f32, {2});
       }},
  };
  for (const Wrong& wrong : all) {
    TensorFile file = small_file();
    wrong.spoil(file);
    write("in.safetensors", print_safetensors(file));
    const Ran r = run("attend " + path("in.safetensors") + " -o " + path("out.safetensors"));
    EXPECT_EQ(r.code, 2) << wrong.says;
    EXPECT_EQ(r.out, "") << wrong.says;
    EXPECT_TRUE(has(r.err, wrong.says));
    EXPECT_FALSE(std::filesystem::exists(path("out.safetensors"))) << wrong.says;
  }
}

TEST_F(AttendRefuses, files_it_cannot_read_or_write) {
  write("cut.safetensors", print_safetensors(small_file()).substr(0, 100));
  Ran r = run("attend " + path("cut.safetensors") + " -o " + path("out.safetensors"));
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "cut.safetensors, byte 0: the header has"));
  EXPECT_EQ(run("attend " + path("missing.safetensors") + " -o " + path("out.safetensors")).code, 2);
  EXPECT_EQ(run("attend " + path("q.npy") + " -o " + path("out.safetensors")).code, 2);

  write("in.safetensors", print_safetensors(small_file()));
  EXPECT_EQ(run("attend " + path("in.safetensors") + " -o " + path("out.txt")).code, 2);
  r = run("attend " + path("in.safetensors") + " -o " + path("no/folder/out.npy") + " --backend cpu");
  EXPECT_EQ(r.code, 5);
  EXPECT_TRUE(has(r.err, "cannot be written"));
}

TEST_F(AttendRefuses, what_is_no_file) {
  ASSERT_EQ(mkfifo(path("pipe.safetensors").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", path("zeros.safetensors"));
  for (const char* const name : {"pipe.safetensors", "zeros.safetensors"}) {
    const Ran r = run("attend " + path(name) + " -o " + path("out.safetensors"));
    EXPECT_EQ(r.code, 2) << name;
    EXPECT_TRUE(has(r.err, "tensors are read from regular files"));
  }
}

}  // namespace
}  // namespace froghopper::files
