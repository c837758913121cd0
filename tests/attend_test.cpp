// SPDX-License-Identifier: Apache-2.0
// tests: froghopper attend, tensors from files and the result back into files: what it takes.
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

// All scores are alike but for the slopes: with 0 a row counts three keys, with log 2 its own and half of each next.
TEST_F(Attend, gives_each_head_its_own_slope) {
  TensorFile in = small_file();
  const float slopes[] = {0, std::log(2.0f)};
  in.tensors["alibi_slopes"] = FileTensor{Element::f32, {2}, Bytes(sizeof slopes)};
  std::memcpy(in.tensors["alibi_slopes"].bytes.data(), slopes, sizeof slopes);
  write("in.safetensors", print_safetensors(in));
  const Ran r =
      run("attend " + path("in.safetensors") + " -o " + path("out.safetensors") + " --lse --check --backend cpu");
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  const std::vector<float> lse = floats(read_safetensors(path("out.safetensors"))->tensors.at("lse"));
  const double counts[] = {3, 3, 3, 1.75, 2, 1.75};
  ASSERT_EQ(lse.size(), std::size(counts));
  for (size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], std::sqrt(8.0) + std::log(counts[i]), 1e-6) << i;
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
        path("q.npy") + "," + path("k.npy") + "," + path("v.npy"),
        path("q.npy") + ", " + path("k.npy") + ", " + path("v.npy"),
        path("q,1.npy") + " " + path("k.npy") + "," + path("v.npy")}) {
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
  const Ran five = run("attend " + q + " " + q + " " + q + " " + q + "," + q + to);
  EXPECT_EQ(five.code, 2);
  EXPECT_TRUE(has(five.err, "a .safetensors with cu_seqlens_q and cu_seqlens_kv.")) << five.err;
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

}  // namespace
}  // namespace froghopper::files
