// SPDX-License-Identifier: Apache-2.0
// tests: froghopper attend, tensors from files and the result back into files: what it takes and what it refuses.
#include <sys/stat.h>

#include <cmath>
#include <cstring>

#include "tests/support/program.hpp"

namespace froghopper::files {
namespace {

class Attend : public Program {};

TEST_F(Attend, computes_and_passes_metadata_through) {
  TensorFile in = small_file();
  in.metadata["tokens"] = "[\"a\"]";
  write("in.safetensors", print_safetensors(in));
  const Ran r =
      run("attend " + path("in.safetensors") + " -o " + path("out.safetensors") + " --lse --check --backend cpu");
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  for (const char* const word :
       {"problem   fwd f32 b1 hq2 hkv2 sq3 skv3 d8\n", "plan ", "time ", ": right\n", "wrote "}) {
    EXPECT_TRUE(has(r.out, word));
  }
  const auto out = read_safetensors(path("out.safetensors"));
  ASSERT_TRUE(out) << out.failure().text;
  EXPECT_EQ(out->metadata.at("tokens"), "[\"a\"]");
  EXPECT_EQ(out->metadata.at("problem"), "fwd f32 b1 hq2 hkv2 sq3 skv3 d8");
  EXPECT_EQ(out->tensors.at("lse").shape, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(out->tensors.at("o").shape, (std::vector<int64_t>{1, 3, 2, 8}));
  EXPECT_EQ(out->tensors.at("o").bytes, in.tensors.at("v").bytes);  // the mean of ones is one
}

TEST_F(Attend, takes_options_and_npy) {
  for (const char* const name : {"q.npy", "k.npy", "v.npy"}) write(name, *print_npy(ones(Element::f16, {5, 2, 16})));
  const std::string in = path("q.npy") + "," + path("k.npy") + "," + path("v.npy");
  const Ran r = run("attend " + in + " -o " + path("o.npy") +
                    " --lse --window 1,-1 --top-left --scale 0.5 --softcap 20 --backend cpu --check");
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_TRUE(has(r.out, "fwd f16 b1 hq2 hkv2 sq5 skv5 d16 window1,-1 topleft scale0.5 softcap20\n"));
  const auto o = read_npy(path("o.npy")), lse = read_npy(path("o.lse.npy"));
  ASSERT_TRUE(o && lse);
  EXPECT_EQ(o->shape, (std::vector<int64_t>{5, 2, 16}));
  EXPECT_EQ(lse->shape, (std::vector<int64_t>{2, 5}));
}

std::vector<float> floats(const FileTensor& tensor) {
  std::vector<float> all(tensor.bytes.size() / sizeof(float));
  std::memcpy(all.data(), tensor.bytes.data(), tensor.bytes.size());
  return all;
}

// The rows of a head together: the first row attends to one key, the second to two.
TEST_F(Attend, saves_lse_a_head_after_the_other) {
  write("in.safetensors", print_safetensors(small_file()));
  const Ran r = run("attend " + path("in.safetensors") + " -o " + path("out.safetensors") +
                    " --lse --causal --scale 0.125 --backend cpu");
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  const std::vector<float> lse = floats(read_safetensors(path("out.safetensors"))->tensors.at("lse"));
  ASSERT_EQ(lse.size(), 6u);
  for (size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], 1 + std::log(1.0 + static_cast<double>(i % 3)), 1e-6);
}

// All weights are 1/3, so every value gets a third of each row's gradient, and scores get none: o does not change with
// them. The sink, a logit of 1 beside three of sqrt(8), takes its share of what lse gets.
TEST_F(Attend, computes_gradients_where_there_is_a_gradient_of_o) {
  TensorFile in = small_file();
  in.tensors["grad_o"] = ones(Element::f32, {1, 3, 2, 8});
  write("in.safetensors", print_safetensors(in));
  const std::string arguments = " -o " + path("out.safetensors") + " --check --backend cpu";
  Ran r = run("attend " + path("in.safetensors") + arguments);
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  for (const char* const word :
       {"problem   bwd f32 b1 hq2 hkv2 sq3 skv3 d8\n", "grad_q: ", "grad_v fp32 [", ": right\n"})
    EXPECT_TRUE(has(r.out, word));
  auto out = read_safetensors(path("out.safetensors"));
  ASSERT_TRUE(out) << out.failure().text;
  EXPECT_EQ(out->metadata.at("problem"), "fwd f32 b1 hq2 hkv2 sq3 skv3 d8");
  EXPECT_TRUE(out->tensors.contains("o"));
  EXPECT_EQ(out->tensors.at("grad_k").shape, (std::vector<int64_t>{1, 3, 2, 8}));
  for (const float x : floats(out->tensors.at("grad_v"))) EXPECT_NEAR(x, 1, 1e-6);
  for (const float x : floats(out->tensors.at("grad_q"))) EXPECT_NEAR(x, 0, 1e-6);
  EXPECT_FALSE(out->tensors.contains("grad_sink"));

  in.tensors["sink"] = ones(Element::f32, {2});
  in.tensors["grad_lse"] = ones(Element::f32, {1, 2, 3});
  in.tensors["grad_o"] = FileTensor{Element::f32, {1, 3, 2, 8}, Bytes(3 * 2 * 8 * 4, 0)};
  write("in.safetensors", print_safetensors(in));
  r = run("attend " + path("in.safetensors") + arguments);
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  out = read_safetensors(path("out.safetensors"));
  ASSERT_TRUE(out) << out.failure().text;
  const double share = std::exp(1) / (std::exp(1) + 3 * std::exp(std::sqrt(8)));
  for (const float x : floats(out->tensors.at("grad_sink"))) EXPECT_NEAR(x, 3 * share, 1e-5);
}

// A gate of 0 halves o, and with it grad_v; o (1 - sigmoid) sigmoid is 1/4. Slopes change weights, but not their sum.
TEST_F(Attend, takes_a_gate_and_slopes) {
  TensorFile in = small_file();
  const std::vector<int64_t> shape = {1, 3, 2, 8};
  in.tensors["gate"] = FileTensor{Element::f32, shape, Bytes(3 * 2 * 8 * 4, 0)};
  in.tensors["grad_o"] = ones(Element::f32, shape);
  in.tensors["alibi_slopes"] = ones(Element::f32, {2});
  write("in.safetensors", print_safetensors(in));
  const std::string command =
      "attend " + path("in.safetensors") + " -o " + path("out.safetensors") + " --check --backend cpu";
  Ran r = run(command);
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_TRUE(has(r.out, "problem   bwd f32 b1 hq2 hkv2 sq3 skv3 d8 alibi gate\n")) << r.out;
  const auto out = read_safetensors(path("out.safetensors"));
  ASSERT_TRUE(out) << out.failure().text;
  for (const float x : floats(out->tensors.at("o"))) EXPECT_NEAR(x, 0.5, 1e-6);
  EXPECT_EQ(out->tensors.at("grad_gate").shape, shape);
  for (const float x : floats(out->tensors.at("grad_gate"))) EXPECT_NEAR(x, 0.25, 1e-6);

  in.tensors["gate"] = ones(Element::f32, {1, 3, 2, 4});
  write("in.safetensors", print_safetensors(in));
  r = run(command);
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "gate must be fp32 [1, 3, 2, 8], as o is, but is fp32 [1, 3, 2, 4].")) << r.err;
}

TEST_F(Attend, writes_gradients_and_max_logit_beside_an_npy) {
  for (const char* const name : {"q.npy", "k.npy", "v.npy", "g.npy"})
    write(name, *print_npy(ones(Element::f16, {5, 2, 16})));
  const std::string in = path("q.npy") + " " + path("k.npy") + " " + path("v.npy");
  const Ran r = run("attend " + in + " -o " + path("o.npy") + " --grad " + path("g.npy") +
                    " --causal --max-logit --check --backend cpu");
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_TRUE(has(r.out, "error     max_logit: "));
  const auto largest = read_npy(path("o.max_logit.npy"));
  ASSERT_TRUE(largest);
  EXPECT_EQ(largest->shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(floats(*largest), (std::vector<float>{4, 4}));  // 16 ones over the root of 16
  for (const char* const name : {"o.npy", "o.grad_q.npy", "o.grad_k.npy", "o.grad_v.npy"}) {
    const auto written = read_npy(path(name));
    ASSERT_TRUE(written) << name;
    EXPECT_EQ(written->shape, (std::vector<int64_t>{5, 2, 16}));
  }
}

TEST_F(Attend, takes_paths_with_commas) {
  const auto npy = *print_npy(ones(Element::f16, {5, 2, 16}));
  for (const char* const name : {"q,1.npy", "k,1.npy", "v,1.npy", "q.npy", "k.npy", "v.npy"}) write(name, npy);
  write("a,b.safetensors", print_safetensors(small_file()));
  const std::string to = " --backend cpu -o " + path("o.npy");
  for (const std::string& in :
       {path("a,b.safetensors"), path("q,1.npy") + " " + path("k,1.npy") + " " + path("v,1.npy"),
        path("q.npy") + "," + path("k.npy") + "," + path("v.npy")}) {
    const Ran r = run("attend " + in + to);
    EXPECT_EQ(r.code, 0) << in << "\n" << r.err;
  }
  EXPECT_TRUE(
      has(run("attend " + path("none,here.safetensors") + to).err, "none,here.safetensors: cannot be opened"));
  // The name of a file is not cut, so this is one .npy and not two.
  const Ran one = run("attend " + path("q,1.npy") + to);
  EXPECT_EQ(one.code, 2);
  EXPECT_TRUE(has(one.err, "the input must be one .safetensors, or three or four .npy, but is "));
  const std::string q = path("q.npy");
  EXPECT_EQ(run("attend " + q + " " + q + " " + q + " " + q + " " + q + to).code, 2);
}

TEST_F(Attend, refuses_numbers_that_it_cannot_hold) {
  write("in.safetensors", print_safetensors(small_file()));
  const std::string paths = path("in.safetensors") + " --backend cpu -o " + path("out.safetensors");
  struct Wrong {
    const char *option, *says;
  };
  for (const auto& [option, says] : {Wrong{"--scale 1e-60", "1e-60 is out of the range of a float"},
                                     {"--scale 1e60", "1e60 is out of the range of a float"},
                                     {"--scale nan", "nan is not positive and finite"},
                                     {"--scale -1", "-1 is not positive and finite"},
                                     {"--scale 1x", "1x is not a number"},
                                     {"--softcap 1e-60", "1e-60 is out of the range of a float"},
                                     {"--window 99999999999999999999,0", "99999999999999999999 is out of the range"},
                                     {"--window 0,99999999999999999999", "99999999999999999999 is out of the range"},
                                     {"--window 7", "7 is one number"},
                                     {"--window 1,2,3", "2,3 is not a number"}}) {
    const Ran r = run(std::string("attend ") + option + " " + paths);
    EXPECT_EQ(r.code, 2) << option;
    EXPECT_TRUE(has(r.err, says));
    EXPECT_FALSE(std::filesystem::exists(path("out.safetensors"))) << option;
  }
  const Ran r = run("attend --scale 1e-40 --softcap +2.5 --window 1,2 " + paths);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, " window1,2 scale1e-40 softcap2.5\n"));
}

TEST_F(Attend, takes_packed_sequences_used_lengths_and_sinks) {
  TensorFile in;
  for (const char* const name : {"q", "k", "v"}) in.tensors[name] = ones(Element::f16, {5, 2, 16});
  in.tensors["cu_seqlens"] = {Element::i64, {3}, Bytes(24, 0)};
  in.tensors["cu_seqlens"].bytes[8] = 2, in.tensors["cu_seqlens"].bytes[16] = 4;
  in.tensors["seqused_kv"] = ones(Element::i32, {2});
  in.tensors["sink"] = ones(Element::f32, {2});
  write("in.safetensors", print_safetensors(in));
  const Ran r =
      run("attend " + path("in.safetensors") + " -o " + path("out.safetensors") + " --causal --check --backend cpu");
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_TRUE(has(r.out, "fwd f16 b2 hq2 hkv2 sq2 skv2 d16 varlen tq5 tkv5 seqused causal sink\n"));
}

TEST_F(Attend, takes_no_sequences) {
  TensorFile in;
  for (const char* const name : {"q", "k", "v"}) in.tensors[name] = {Element::f32, {0, 3, 2, 8}, {}};
  in.tensors["seqused_q"] = {Element::i32, {0}, {}};
  write("in.safetensors", print_safetensors(in));
  const Ran r = run("attend " + path("in.safetensors") + " -o " + path("out.safetensors") + " --check --backend cpu");
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_TRUE(has(r.out, "fwd f32 b0 hq2 hkv2 sq3 skv3 d8 seqused\n"));
}

// None of them leaves an output.
TEST_F(Attend, refuses_what_does_not_fit) {
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
      {"sink must be fp32 with 2 numbers, one for each query head, but is fp32 with 3 numbers.",
       [](TensorFile& f) { f.tensors["sink"] = ones(Element::f32, {3}); }},
      {"grad_o must be fp32 [1, 3, 2, 8], as o is, but is fp32 [1, 3, 2, 16].",
       [](TensorFile& f) {
         f.tensors["grad_o"] = ones(Element::f32, {1, 3, 2, 16});
       }},
      {"there is a grad_lse, but no grad_o",
       [](TensorFile& f) {
         f.tensors["grad_lse"] = ones(Element::f32, {1, 2, 3});
       }},
      {"seqused_q must have 1 number, one for each sequence, but has 2.",
       [](TensorFile& f) { f.tensors["seqused_q"] = ones(Element::i32, {2}); }},
      {"cu_seqlens_q[0] is 1",
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

TEST_F(Attend, refuses_files_it_cannot_read_or_write) {
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

// By any of its names, and whichever file of the output it is.
TEST_F(Attend, overwrites_none_of_its_inputs) {
  const std::string npy = *print_npy(ones(Element::f32, {3, 2, 8})), file = print_safetensors(small_file());
  for (const char* const name : {"q.npy", "k.npy", "v.npy", "o.lse.npy", "o.grad_k.npy", "g.npy"}) write(name, npy);
  write("in.safetensors", file);
  std::filesystem::create_symlink(path("k.npy"), path("link.npy"));
  const std::string q = path("q.npy"), k = path("k.npy"), v = path("v.npy"), three = q + " " + k + " " + v;
  for (const std::string& arguments : {path("in.safetensors") + " -o " + path("./in.safetensors"), three + " -o " + q,
                                       three + " -o " + path("link.npy"), q + "," + k + "," + v + " -o " + v,
                                       q + " " + k + " " + path("o.lse.npy") + " --lse -o " + path("o.npy"),
                                       three + " --grad " + path("g.npy") + " -o " + path("g.npy"),
                                       three + " --grad " + path("o.grad_k.npy") + " -o " + path("o.npy")}) {
    const Ran r = run("attend --backend cpu " + arguments);
    EXPECT_EQ(r.code, 2) << arguments;
    EXPECT_EQ(r.out, "") << arguments << " was computed first";
    EXPECT_TRUE(has(r.err, "is an input too, which would be lost. Name another file.")) << arguments;
  }
  for (const char* const name : {"q.npy", "k.npy", "v.npy", "o.lse.npy", "o.grad_k.npy", "g.npy"})
    EXPECT_EQ(contents(path(name)), npy) << name;
  EXPECT_EQ(contents(path("in.safetensors")), file);
  EXPECT_FALSE(std::filesystem::exists(path("o.npy")));
}

// A misspelt name has no meaning, and neither has what another tensor stands in for.
TEST_F(Attend, names_tensors_that_it_does_not_use) {
  TensorFile in = small_file();
  write("in.safetensors", print_safetensors(in));
  const std::string to = " --backend cpu -o " + path("out.safetensors");
  EXPECT_EQ(run("attend " + path("in.safetensors") + to).err, "");
  in.tensors["gates"] = ones(Element::f32, {1, 3, 2, 8});
  write("in.safetensors", print_safetensors(in));
  const Ran one = run("attend " + path("in.safetensors") + to);
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.err, "froghopper: gates in the input is not used. froghopper attend --help names what is.\n");
  in.tensors["grad_o"] = in.tensors["q"];
  write("in.safetensors", print_safetensors(in));
  write("g.npy", *print_npy(in.tensors["q"]));
  const Ran two = run("attend " + path("in.safetensors") + " --grad " + path("g.npy") + to);
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_TRUE(has(two.err, "froghopper: gates, grad_o in the input are not used."));

  // Lengths of both sides leave nothing to the one for both, but used lengths and their like are used.
  TensorFile packed;
  for (const char* const name : {"q", "k", "v"}) packed.tensors[name] = ones(Element::f32, {3, 2, 8});
  for (const char* const name : {"cu_seqlens", "cu_seqlens_q", "cu_seqlens_kv"}) {
    packed.tensors[name] = {Element::i32, {2}, Bytes(8, 0)};
    packed.tensors[name].bytes[4] = 3;
  }
  packed.tensors["sink"] = ones(Element::f32, {2});
  write("in.safetensors", print_safetensors(packed));
  const Ran both = run("attend " + path("in.safetensors") + to);
  EXPECT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(both.err, "froghopper: cu_seqlens in the input is not used. froghopper attend --help names what is.\n");
}

TEST_F(Attend, refuses_what_is_no_file) {
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
