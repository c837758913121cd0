// SPDX-License-Identifier: Apache-2.0
// tests: the program froghopper as a script sees it: what it prints where, and its exit codes.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "check/check.hpp"
#include "files/tensor_file.hpp"

namespace froghopper::files {
namespace {

struct Ran {
  int code = -1;
  std::string out, err;
};

std::string contents(const std::string& path) {
  std::stringstream all;
  all << std::ifstream(path).rdbuf();
  return all.str();
}

class Program : public testing::Test {
 protected:
  // A folder of its own, as tests run side by side.
  void SetUp() override {
    folder_ = testing::TempDir() + "froghopper_cli_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // arguments as a shell reads them
  Ran run(const std::string& arguments) const {
    const std::string command =
        std::string(FROGHOPPER_PROGRAM) + " " + arguments + " >" + path("stdout") + " 2>" + path("stderr");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(path("stdout")), contents(path("stderr"))};
  }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

  std::string folder_;
};

testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in:\n" << text;
}

FileTensor ones(Element element, std::vector<int64_t> shape) {
  FileTensor t{element, std::move(shape), {}};
  int64_t numbers = 1;
  for (const int64_t extent : t.shape) numbers *= extent;
  const std::array<unsigned char, 4> fp32{0, 0, 0x80, 0x3f}, fp16{0, 0x3c, 0, 0}, int32{1, 0, 0, 0};
  const auto& one = element == Element::f16 ? fp16 : element == Element::f32 ? fp32 : int32;
  for (int64_t i = 0; i < numbers; ++i) t.bytes.insert(t.bytes.end(), one.begin(), one.begin() + size_of(element));
  return t;
}

TensorFile small_file() {
  TensorFile file;
  for (const char* const name : {"q", "k", "v"}) file.tensors[name] = ones(Element::f32, {1, 3, 2, 8});
  return file;
}

TEST_F(Program, without_or_with_unknown_words_says_so_on_stderr) {
  for (const char* const arguments : {"", "chck", "check --backend tpu", "attend", "attend x.npy", "check --nonsense",
                                      "attend x -o y --causal --window 1,1", "attend x -o y --scale 0"}) {
    const Ran r = run(arguments);
    EXPECT_EQ(r.code, 2) << arguments;
    EXPECT_EQ(r.out, "") << arguments;
    EXPECT_NE(r.err, "") << arguments;
  }
}

TEST_F(Program, helps_with_examples) {
  for (const char* const command : {"info", "explain", "check", "bench", "attend"}) {
    const Ran r = run(std::string(command) + " --help");
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(r.err, "");
    EXPECT_TRUE(has(r.out, "Examples:\n  froghopper " + std::string(command))) << command;
  }
  EXPECT_TRUE(has(run("--help").out, "Exit codes: 0 "));
  EXPECT_EQ(run("--version").code, 0);
}

TEST_F(Program, info_names_what_it_looks_for_and_what_is_supported) {
  const Ran r = run("info");
  EXPECT_EQ(r.code, 0);
  for (const char* const word : {"driver", "NVRTC", "presets", "serves", "cache", "CPU f32", "| causal |"}) {
    EXPECT_TRUE(has(r.out, word));
  }
  EXPECT_EQ(r.err, "");
  const Ran table = run("info --support-table");
  EXPECT_EQ(table.out.find("Head dims are"), 0u);
  EXPECT_TRUE(has(r.out, table.out));
}

TEST_F(Program, explain_gives_the_plan_or_the_reason) {
  const Ran fine = run("explain 'fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal' --target 'h200 132sm'");
  EXPECT_EQ(fine.code, 0) << fine.err;
  EXPECT_TRUE(has(fine.out, "fwd.bf16.d128"));
  EXPECT_TRUE(has(fine.out, "tiles"));
  EXPECT_TRUE(has(fine.out, "shared"));

  const Ran refused = run("explain 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64' --target 'h200 132sm'");
  EXPECT_EQ(refused.code, 4);
  EXPECT_TRUE(has(refused.out, "dtype is f32"));

  const Ran wrong = run("explain 'fwd bf16 b1 hq8 hkv3 sq9 skv9 d64'");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(has(wrong.err, "heads_kv"));
  EXPECT_EQ(wrong.out, "");
}

TEST_F(Program, check_prints_a_row_a_case_and_counts) {
  const Ran r =
      run("check --backend cpu 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64' 'fwd f16 b1 hq1 hkv1 sq9 skv9 d8 : data=huge'");
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_TRUE(has(r.out, "fwd f32 b1 hq1 hkv1 sq9 skv9 d64\n"));
  EXPECT_TRUE(has(r.out, " rmse "));
  EXPECT_TRUE(has(r.out, "2 right, 0 wrong, 0 refused, 0 skipped\n"));
  EXPECT_EQ(r.err, "");

  write("cases.txt",
        "# two\nfwd f32 b1 hq1 hkv1 sq9 skv9 d64 : only=gpu # gpu\nfwd f32 b1 hq1 hkv1 sq9 skv9 d64 # why\n");
  const Ran file = run("check --backend cpu --verbose " + path("cases.txt"));
  EXPECT_EQ(file.code, 0);
  EXPECT_TRUE(has(file.out, "1 right, 0 wrong, 0 refused, 1 skipped"));
  EXPECT_TRUE(has(file.out, "why this case: why"));
  EXPECT_TRUE(has(file.out, "plan: fwd f32"));
}

// One line a case, so that tables of errors are made from results.
TEST_F(Program, check_appends_json_lines) {
  const std::string line = "fwd f32 b1 hq1 hkv1 sq9 skv9 d64";
  const Ran r = run("check --backend cpu --commit abc --json " + path("errors.jsonl") + " '" + line +
                    "' 'fwd bf16 b1 hq1 hkv1 sq9 skv9 d64 : data=outliers'");
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  std::istringstream lines(contents(path("errors.jsonl")));
  std::vector<nlohmann::json> records;
  for (std::string text; std::getline(lines, text);) records.push_back(nlohmann::json::parse(text));
  ASSERT_EQ(records.size(), 2u);
  for (const char* const key : {"problem", "case", "data", "tensor", "backend", "plan", "gpu", "error", "plain",
                                "allowed", "relative", "rmse", "lse_error", "passed", "commit", "date"})
    EXPECT_TRUE(records[0].contains(key)) << key;
  EXPECT_EQ(records[0]["problem"], line);
  EXPECT_EQ(records[0]["tensor"], "o");
  EXPECT_EQ(records[0]["commit"], "abc");
  EXPECT_EQ(records[0]["plan"].get<std::string>().rfind("cpu ", 0), 0u);
  EXPECT_EQ(records[0]["passed"], true);
  EXPECT_LT(records[0]["rmse"].get<double>(), records[0]["error"].get<double>());
  EXPECT_EQ(records[1]["data"], "outliers");
  EXPECT_EQ(run("check --backend cpu --json " + path("no/folder/x.jsonl") + " '" + line + "'").code, 5);
}

TEST_F(Program, check_refuses_malformed_cases_with_the_place) {
  write("cases.txt", "fwd f32 b1 hq1 hkv1 sq9 skv9 d64\nfwd f32 b1 hq1 hkv1 sq9 skv9 d65\n");
  const Ran file = run("check " + path("cases.txt"));
  EXPECT_EQ(file.code, 2);
  EXPECT_EQ(file.out, "");
  EXPECT_TRUE(has(file.err, "cases.txt, line 2, byte 33 of the file"));
  const Ran line = run("check 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64 : data=odd'");
  EXPECT_EQ(line.code, 2);
  EXPECT_TRUE(has(line.err, "byte 40: data=odd is unknown"));
}

TEST_F(Program, says_that_there_is_no_gpu_where_there_is_none) {
  if (check::hopper_is_here()) GTEST_SKIP() << "there is a Hopper GPU";
  for (const char* const arguments : {"check --backend hopper", "bench --backend hopper",
                                      "explain 'fwd f16 b1 hq1 hkv1 sq9 skv9 d64' --target hopper"}) {
    EXPECT_EQ(run(arguments).code, 3) << arguments;
  }
}

TEST_F(Program, attend_computes_and_passes_metadata_through) {
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

TEST_F(Program, attend_takes_options_and_npy) {
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

TEST_F(Program, attend_takes_packed_sequences_used_lengths_and_sinks) {
  TensorFile in;
  for (const char* const name : {"q", "k", "v"}) in.tensors[name] = ones(Element::f16, {5, 2, 16});
  in.tensors["cu_seqlens"] = {Element::i64, {3}, std::vector<unsigned char>(24)};
  in.tensors["cu_seqlens"].bytes[8] = 2, in.tensors["cu_seqlens"].bytes[16] = 4;
  in.tensors["seqused_kv"] = ones(Element::i32, {2});
  in.tensors["sink"] = ones(Element::f32, {2});
  write("in.safetensors", print_safetensors(in));
  const Ran r =
      run("attend " + path("in.safetensors") + " -o " + path("out.safetensors") + " --causal --check --backend cpu");
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_TRUE(has(r.out, "fwd f16 b2 hq2 hkv2 sq2 skv2 d16 varlen tq5 tkv5 seqused causal sink\n"));
}

// Every one of them leaves no output behind.
TEST_F(Program, attend_refuses_what_does_not_fit) {
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
      {"q is int32",
       [](TensorFile& f) {
         for (auto& [name, tensor] : f.tensors) tensor = ones(Element::i32, {1, 3, 2, 8});
       }},
      {"q has 2 extents",
       [](TensorFile& f) {
         f.tensors["q"] = ones(Element::f32, {3, 16});
       }},
      {"k has 3 rows and v has 4",
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
      {"2, 1 and 1 sequences",
       [](TensorFile& f) {
         f.tensors["q"] = ones(Element::f32, {2, 3, 2, 8});
       }},
      {"heads_kv is 2 and heads_q is 3",
       [](TensorFile& f) {
         f.tensors["q"] = ones(Element::f32, {1, 3, 3, 8});
       }},
      {"with cu_seqlens it has three", [](TensorFile& f) { f.tensors["cu_seqlens"] = ones(Element::i32, {2}); }},
      {"sink is fp32 with 3 numbers", [](TensorFile& f) { f.tensors["sink"] = ones(Element::f32, {3}); }},
      {"seqused_q has 2 numbers", [](TensorFile& f) { f.tensors["seqused_q"] = ones(Element::i32, {2}); }},
      {"cu_seqlens_q[0] is 1",
       [](TensorFile& f) {
         for (auto& [name, tensor] : f.tensors) tensor = ones(Element::f32, {3, 2, 8});
         f.tensors["cu_seqlens"] = ones(Element::i32, {2});
       }},
      {"cu_seqlens is fp32",
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

TEST_F(Program, attend_refuses_files_it_cannot_read_or_write) {
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

}  // namespace
}  // namespace froghopper::files
