// SPDX-License-Identifier: Apache-2.0
// tests: the program froghopper as a script sees it: what it prints where, and its exit codes. Its command attend has a
// file of its own.
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "check/check.hpp"
#include "src/base/text.hpp"
#include "tests/support/program.hpp"

namespace froghopper::files {
namespace {

TEST_F(Program, without_or_with_unknown_words_says_so_on_stderr) {
  for (const char* const arguments : {"", "chck", "check --backend tpu", "attend", "attend x.npy", "check --nonsense",
                                      "attend x -o y --causal --window 1,1", "attend x -o y --scale 0"}) {
    const Ran r = run(arguments);
    EXPECT_EQ(r.code, 2) << arguments;
    EXPECT_EQ(r.out, "") << arguments;
    EXPECT_NE(r.err, "") << arguments;
  }
}

// Each command is named, so that a slip of the finger is mended from the message.
TEST_F(Program, names_the_commands_where_it_is_given_none) {
  for (const char* const arguments : {"", "chck 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64'", "CHECK"}) {
    const Ran r = run(arguments);
    EXPECT_EQ(r.code, 2) << arguments;
    EXPECT_TRUE(has(r.err, "it must be one of info, explain, check, bench, prepare, attend")) << r.err;
  }
  EXPECT_TRUE(has(run("chck").err, "\"chck\" is no command"));
}

TEST_F(Program, helps_with_examples) {
  for (const char* const command : {"info", "explain", "check", "bench", "prepare", "attend"}) {
    const Ran r = run(std::string(command) + " --help");
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(r.err, "");
    EXPECT_TRUE(has(r.out, "Examples:\n  froghopper " + std::string(command))) << command;
  }
  EXPECT_TRUE(has(run("--help").out, "Exit codes: 0 "));
  EXPECT_EQ(run("--version").out, text("{}\n", fh_version()));
}

TEST_F(Program, info_names_what_it_looks_for_and_what_is_supported) {
  const Ran r = run("info");
  EXPECT_EQ(r.code, 0);
  for (const char* const word : {"driver", "NVRTC", "presets", "serves", "cache", "CPU        cpu ", "| causal |"}) {
    EXPECT_TRUE(has(r.out, word));
  }
  EXPECT_EQ(r.err, "");
  const Ran table = run("info --support-table");
  EXPECT_EQ(table.out.find("Head dims are"), 0u);
  EXPECT_TRUE(has(r.out, table.out));
  EXPECT_TRUE(has(run("info --options").out, "\n| `window_left` | int64 | FH_ALL |"));
  const Ran tables = run("info --tensors");
  EXPECT_TRUE(has(tables.out,
                  "\n| `k` | `dtype_kv` | [batch, seq_kv, heads_kv, dim_qk]; `varlen`: [total_kv, heads_kv, dim_qk]; "
                  "`page_size`: [pages, page_size, heads_kv, dim_qk] | read |  | the keys |\n"));
  for (const Tensor& tensor : tensors())
    EXPECT_TRUE(has(tables.out, text("\n| `{}` | ", tensor.name))) << tensor.name;
}

TEST_F(Program, info_and_explain_have_json) {
  const auto info = nlohmann::json::parse(run("info --json").out);
  EXPECT_EQ(info["version"], fh_version());
  EXPECT_TRUE(info["gpus"].is_array());
  for (const char* const key : {"driver", "nvrtc", "presets", "serves", "cache", "cpu"})
    EXPECT_TRUE(has(run("info").out, info[key].get<std::string>())) << key;
  for (const char* both : {"--json --support-table", "--json --options", "--tensors --options"})
    EXPECT_EQ(run(std::string("info ") + both).code, 2);

  const std::string line = "fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal";
  run("explain --target h200 '" + line + "'");  // which may compile a kernel, and say so
  const auto plan = nlohmann::json::parse(run("explain --json --target h200 '" + line + "'").out);
  EXPECT_EQ(plan["problem"], line);
  EXPECT_EQ(plan["status"], "FH_OK");
  EXPECT_EQ(plan["runs_on"], nullptr);  // it was only named
  EXPECT_EQ(plan["kernels"].size(), 1u);
  EXPECT_EQ(plan["plan"].get<std::string>().find(plan["kernels"][0]["name"].get<std::string>()), 0u);
  EXPECT_EQ(plan["explanation"].get<std::string>() + "\n", run("explain --target h200 '" + line + "'").out);
  const Ran cpu = run("explain --json --target cpu 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64'");
  EXPECT_EQ(nlohmann::json::parse(cpu.out)["runs_on"], "cpu");
  for (const char* refused : {"64' --target h200", "65'"}) {
    const Ran ran = run(std::string("explain --json 'fwd f32 b1 hq1 hkv1 sq9 skv9 d") + refused);
    EXPECT_EQ(nlohmann::json::parse(ran.out)["status"], "FH_UNSUPPORTED");
    EXPECT_EQ(ran.code, 4);
  }
}

// A pipe of JSON has no line that is none, whatever else there is to say.
TEST_F(Program, json_to_stdout_is_nothing_else) {
  const std::string line = "'fwd f32 b1 hq1 hkv1 sq9 skv9 d64'";
  for (const std::string& arguments :
       {"check --backend cpu --verbose --json - " + line + " 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64 : only=gpu'",
        "bench --backend cpu --ms 1 --rounds 1 --json - " + line}) {
    const Ran r = run(arguments);
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(std::ranges::count(r.out, '\n'), 1) << r.out;
    EXPECT_EQ(text("'{}'", nlohmann::json::parse(r.out)["problem"].get<std::string>()), line);
    EXPECT_FALSE(std::filesystem::exists("-"));
    EXPECT_EQ(run(arguments, "/dev/full").code, 5) << arguments;
  }
  EXPECT_TRUE(has(run("check --backend cpu --json - " + line).err, "1 right, 0 wrong"));
}

TEST_F(Program, info_has_one_line_for_the_cpu) {
  const std::string out = run("info").out;
  EXPECT_EQ(out.find("\nCPU"), out.rfind("\nCPU"));
}

// A full disk: what was not written is not a result.
TEST_F(Program, fails_where_its_output_does_not_arrive) {
  write("in.safetensors", print_safetensors(small_file()));
  const std::string line = "'fwd f32 b1 hq1 hkv1 sq9 skv9 d64'";
  const std::string all[] = {"info",
                             "--help",
                             "--version",
                             "attend --help",
                             "explain --target cpu " + line,
                             "check --backend cpu " + line,
                             "bench --backend cpu --ms 1 --rounds 1 " + line,
                             "attend --backend cpu " + path("in.safetensors") + " -o " + path("out.safetensors")};
  for (const std::string& arguments : all) {
    const Ran r = run(arguments, "/dev/full");
    EXPECT_EQ(r.code, 5) << arguments;
    EXPECT_TRUE(has(r.err, "writing to stdout failed")) << arguments;
  }
  EXPECT_EQ(run("check --backend tpu", "/dev/full").code, 2);  // nothing was to be written there
}

// What cannot be kept is noticed before anything is computed, of every file that is written.
TEST_F(Program, fails_where_its_files_cannot_be_written) {
  TensorFile in = small_file();
  in.tensors["grad_o"] = ones(Element::f32, {1, 3, 2, 8});
  write("in.safetensors", print_safetensors(in));
  std::filesystem::create_directories(path("taken.lse.npy"));
  std::filesystem::create_directories(path("used.grad_k.npy"));
  for (const std::string& out : {path("no/folder/o.safetensors"), path("no/folder/o.npy"), path("taken.npy"),
                                 path("used.npy"), path("in.safetensors/o.npy")}) {
    const Ran r = run("attend --lse --backend cpu " + path("in.safetensors") + " -o " + out);
    EXPECT_EQ(r.code, 5) << out;
    EXPECT_EQ(r.out, "") << out << " was computed first";
    EXPECT_TRUE(has(r.err, "cannot be written")) << out;
  }
  EXPECT_FALSE(std::filesystem::exists(path("taken.npy")));
  const std::string line = "'fwd f32 b1 hq1 hkv1 sq9 skv9 d64'";
  for (const std::string& arguments : {"check --backend cpu --json /dev/full " + line,
                                       "bench --backend cpu --ms 1 --rounds 1 --json /dev/full " + line}) {
    const Ran r = run(arguments);
    EXPECT_EQ(r.code, 5) << arguments;
    EXPECT_TRUE(has(r.err, "writing to /dev/full failed")) << arguments;
  }
  EXPECT_EQ(run("check --backend cpu --json " + folder_ + " " + line).code, 5);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);  // that nobody reads
  EXPECT_EQ(run("check --backend cpu --json " + path("pipe") + " " + line).code, 5);
}

// Who reads no further ends the program, without a message, as head does with any.
TEST_F(Program, says_nothing_where_nobody_reads) {
  write("in.safetensors", print_safetensors(small_file()));
  const std::string line = "'fwd f32 b1 hq1 hkv1 sq9 skv9 d64'";
  const std::string all[] = {"info",
                             "--help",
                             "explain --target cpu " + line,
                             "check --backend cpu " + line,
                             "bench --backend cpu --ms 1 --rounds 1 " + line,
                             "attend --backend cpu " + path("in.safetensors") + " -o " + path("out.safetensors")};
  for (const char* const before : {"", "trap '' PIPE; "}) {  // also where the parent ignores the signal
    for (const std::string& arguments : all) {
      // The program begins to write when the reader has gone.
      const std::string command = text("{{ {}sleep 0.1; {} {} 2>{}; echo $? >{}; }} | true", before,
                                       FROGHOPPER_PROGRAM, arguments, path("stderr"), path("code"));
      ASSERT_EQ(std::system(command.c_str()), 0);
      EXPECT_EQ(contents(path("code")), "141\n") << arguments;  // 128 + SIGPIPE
      const std::string said = contents(path("stderr"));
      EXPECT_TRUE(said.empty() || said.starts_with("[1/1] ")) << arguments << said;
    }
  }
}

// The next file that is opened would get the number of the one that is closed, and what is printed would go into it.
TEST_F(Program, prints_nothing_into_other_files_where_stdout_is_closed) {
  write("in.safetensors", print_safetensors(small_file()));
  const Ran r = run("attend --backend cpu " + path("in.safetensors") + " -o " + path("out.safetensors"), "&-");
  EXPECT_EQ(r.code, 5);
  EXPECT_TRUE(has(r.err, "writing to stdout failed"));
  EXPECT_TRUE(read_safetensors(path("out.safetensors")));
  const Ran checked =
      run("check --backend cpu --json " + path("x.jsonl") + " 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64'", "&-");
  EXPECT_EQ(checked.code, 5);
  EXPECT_FALSE(has(contents(path("x.jsonl")), "problem\n"));
}

// A device or a pipe may never end. Their lines are read as those of a file.
TEST_F(Program, reads_cases_from_pipes_and_not_for_ever) {
  for (const char* const command : {"check", "bench --backend cpu"}) {
    const Ran r = run(std::string(command) + " /dev/zero");
    EXPECT_EQ(r.code, 2) << command;
    EXPECT_TRUE(has(r.err, "/dev/zero has more than 16777216 bytes")) << command;
  }
  EXPECT_EQ(run("check " + folder_).code, 2);
  ASSERT_EQ(std::system(text("echo 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64' | {} check --backend cpu /dev/stdin >{}",
                             FROGHOPPER_PROGRAM, path("out"))
                            .c_str()),
            0);
  EXPECT_TRUE(has(contents(path("out")), "1 right, 0 wrong"));
}

// More sequences than anything can count to, and not a row in them.
TEST_F(Program, does_not_count_sequences_without_rows) {
  for (const char* const line : {"fwd f32 b9007199254740991 hq1 hkv1 sq0 skv0 d8",
                                 "fwd f32 b1 hq9007199254740991 hkv9007199254740991 sq0 skv0 d8",
                                 "fwd f32 b0 hq1 hkv1 sq9007199254740 skv9 d8 causal"}) {
    const Ran checked = run(std::string("check --backend cpu '") + line + "'");
    EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
    const Ran timed = run(std::string("bench --backend cpu --ms 1 --rounds 1 '") + line + "'");
    EXPECT_EQ(timed.code, 0) << timed.out << timed.err;
  }
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {1'000'000'000'000'000, 0, 1, 8}, {1, 0, 1'000'000'000'000'000, 8}, {0, 1'000'000'000'000'000, 1, 8}}) {
    TensorFile file;
    for (const char* const name : {"q", "k", "v"}) file.tensors[name] = {Element::f32, shape, {}};
    write("in.safetensors", print_safetensors(file));
    const Ran r =
        run("attend --backend cpu --check --lse " + path("in.safetensors") + " -o " + path("out.safetensors"));
    ASSERT_EQ(r.code, 0) << r.out << r.err;
    EXPECT_EQ(read_safetensors(path("out.safetensors"))->tensors.at("o").shape, shape);
  }
}

TEST_F(Program, says_in_words_that_there_is_no_memory) {
  for (const char* const line : {"fwd f32 b9007199254740991 hq1 hkv1 sq0 skv0 d8 seqused",
                                 "fwd f32 b9007199254740991 hq1 hkv1 sq0 skv0 d8 varlen tq0 tkv0",
                                 "fwd f32 b1 hq1 hkv1 sq1 skv900719925474099 d8"}) {
    const Ran r = run(std::string("check --backend cpu '") + line + "'");
    EXPECT_EQ(r.code, 5) << line;
    EXPECT_TRUE(has(r.err, "no memory for the tensors")) << line;
  }
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

TEST_F(Program, check_prints_a_row_a_gradient) {
  const Ran r = run("check --backend cpu 'bwd f32 b1 hq1 hkv1 sq9 skv9 d64 sink : grad_lse=yes'");
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  for (const char* const name : {"grad_q", "grad_k", "grad_v", "grad_sink"})
    EXPECT_TRUE(has(r.out, std::string(name) + " of bwd f32 b1 hq1 hkv1 sq9 skv9 d64 sink : grad_lse=yes\n"));
  EXPECT_TRUE(has(r.out, "1 right, 0 wrong, 0 refused, 0 skipped\n"));

  const Ran huge = run("check --backend cpu 'bwd f32 b1 hq1 hkv1 sq9 skv9 d64 : data=huge'");
  EXPECT_EQ(huge.code, 4);
  EXPECT_TRUE(has(huge.out, "lse reaches "));
}

TEST_F(Program, check_compares_what_is_written_to_a_cache) {
  const std::string line = "append bf16 kv=e4m3 b3 hq4 hkv2 sq2 skv50 d64 seqused page16 pages12 tokenscales";
  const Ran r = run("check --backend cpu --json " + path("append.jsonl") + " '" + line + "'");
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  for (const char* const name : {"q_out", "scale_k", "cache_k", "scale_v", "cache_v"})
    EXPECT_TRUE(has(r.out, std::string(name) + " of " + line + "\n")) << name;
  EXPECT_TRUE(has(r.out, "1 right, 0 wrong, 0 refused, 0 skipped\n"));
  EXPECT_TRUE(has(contents(path("append.jsonl")), "\"tensor\":\"cache_v\""));

  const Ran full = run("check --backend cpu 'append bf16 b1 hq1 hkv1 sq3 skv9 d64 seqused : used_q=3 used_kv=7'");
  EXPECT_EQ(full.code, 2);
  EXPECT_TRUE(has(full.out, "the sequence gets 3 more rows, and seq_kv is 9")) << full.out;
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
  write("cases.txt", "fwd f32 b1 hq1 hkv1 sq9 skv9 d64\nfwd f32 b1 hq2 hkv3 sq9 skv9 d64\n");
  const Ran file = run("check " + path("cases.txt"));
  EXPECT_EQ(file.code, 2);
  EXPECT_TRUE(has(file.out, "1 right, 0 wrong, 0 refused, 0 skipped, 1 not read\n")) << file.out;
  EXPECT_TRUE(has(file.err, "cases.txt, line 2, byte 33 of the file"));
  EXPECT_EQ(run("check 'fwd f32 b1 hq1 hkv1 sq9 skv9 d65'").code, 4);  // it makes sense, but nothing computes it
  const Ran line = run("check 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64 : data=odd'");
  EXPECT_EQ(line.code, 2);
  EXPECT_TRUE(has(line.err, "byte 40: data=odd is unknown"));
}

// Into the disk cache, once; on a machine without a GPU for one that is named.
TEST_F(Program, prepares_kernels_once) {
  if (!std::filesystem::exists(FROGHOPPER_BUILD_NVRTC)) GTEST_SKIP() << "no NVRTC was found when this was built";
  setenv("FROGHOPPER_NVRTC", FROGHOPPER_BUILD_NVRTC, 1);
  setenv("FROGHOPPER_CACHE", path("cache").c_str(), 1);
  // Filling is a kernel of a few lines. A kernel is told by its name, and its process leaves it in the cache.
  EXPECT_EQ(run("prepare --kernel fill").code, 0);
  const auto kernels = [&] {
    const auto all = std::filesystem::directory_iterator(path("cache"));
    return std::distance(begin(all), end(all));
  };
  EXPECT_EQ(kernels(), 1);
  const std::string lines =
      "prepare --target h200 'fwd bf16 b1 hq1 hkv1 sq64 skv64 d64 softcap30' "
      "'fwd bf16 b1 hq1 hkv1 sq64 skv64 d64 softcap30 causal' "
      "'fwd f32 b1 hq1 hkv1 sq64 skv64 d64'";  // the last is the CPU's
  const Ran first = run(lines), second = run(lines);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(has(first.err, "compiling 2 kernels"));
  EXPECT_TRUE(has(first.err, "compiled 2 of them in "));
  EXPECT_EQ(kernels(), 3);
  EXPECT_EQ(second.code, 0);
  EXPECT_EQ(second.err, "nothing to compile: what a GPU needs for this is built in or in the disk cache\n");
  for (const char* const variable : {"FROGHOPPER_NVRTC", "FROGHOPPER_CACHE"}) unsetenv(variable);

  EXPECT_EQ(run("prepare --kernel nonsense").code, 2);
  EXPECT_EQ(run("prepare").code, 2);
  EXPECT_EQ(run("prepare --target cpu 'fwd f32 b1 hq1 hkv1 sq64 skv64 d64'").code, 2);
}

TEST_F(Program, says_that_there_is_no_gpu_where_there_is_none) {
  if (check::hopper_is_here()) GTEST_SKIP() << "there is a Hopper GPU";
  for (const char* const arguments :
       {"check --backend hopper", "bench --backend hopper", "prepare 'fwd f16 b1 hq1 hkv1 sq9 skv9 d64'",
        "explain 'fwd f16 b1 hq1 hkv1 sq9 skv9 d64' --target hopper"}) {
    EXPECT_EQ(run(arguments).code, 3) << arguments;
  }
}

// A file cannot steer the terminal of whoever looks at it.
TEST_F(Program, prints_no_control_characters_of_a_file) {
  TensorFile file = small_file();
  file.tensors["q\x1b[2J\x7f\xc2\x9b\u00e4"] = file.tensors["q"];
  std::string bytes = print_safetensors(file);
  const auto at = bytes.find("\"F32\"");
  write("dtype.safetensors", bytes.replace(at, 5, "\"F3\x9b\""));
  write("cases.txt", "fwd f32 b1 hq1 hkv1 sq9 skv9 d64 # \x1b[2J \xc3\xa4 \xc3\n");
  write("case.txt", "fwd f32 \x1b[2J\n");
  for (const std::string& arguments :
       {"attend " + path("dtype.safetensors") + " -o " + path("o.npy"), "check " + path("case.txt"),
        "check --backend cpu --verbose " + path("cases.txt")}) {
    const Ran r = run(arguments);
    for (const std::string& out : {r.out, r.err}) {
      EXPECT_EQ(out.find_first_of("\x1b\x7f\x9b"), std::string::npos) << arguments;
    }
  }
  EXPECT_TRUE(has(run("check --backend cpu --verbose " + path("cases.txt")).out, "\\x1b[2J \xc3\xa4 \\xc3\n"));
}

}  // namespace
}  // namespace froghopper::files
