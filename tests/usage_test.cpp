// SPDX-License-Identifier: Apache-2.0
// tests: what the program froghopper says of options and arguments that make no sense.
#include <algorithm>

#include "check/check.hpp"
#include "tests/support/program.hpp"

namespace froghopper::files {
namespace {

// The option as it was typed, its value, the rule and a way out; nothing of the C interface.
TEST_F(Program, says_what_is_wrong_with_an_option) {
  const std::string line = "'fwd f32 b1 hq1 hkv1 sq9 skv9 d64'";
  const struct {
    std::string arguments;
    const char* message;
  } cases[] = {
      {"bench " + line + " --rounds 0",
       "froghopper: --rounds must be from 1 to 1000, but is \"0\". froghopper bench --help"},
      {"check " + line + " --seed -1",
       "froghopper: --seed must be a number, not negative and not too large, but is \"-1\""},
      {"check " + line + " --seed ''", "--seed must not be empty"},
      {"bench " + line + " --json ''", "--json must not be empty. Leave it out, or give a value."},
      {"bench " + line + " --tiles x", "--tiles must be the tiles of a kernel, as 128x80s2, but is \"x\""},
      {"bench " + line + " --hints x",
       "--hints must be words as in 'section=16MiB tail=30% deferred=8', but is \"x\""},
      {"prepare " + line + " --target cpu",
       "--target must be a GPU, as the CPU has no kernels to compile, but is \"cpu\""},
      {"explain", "froghopper: line must be given, but is not. froghopper explain --help"},
      {"attend x.npy", "froghopper: --output must be given"},
      {"check --backend tpu",
       "froghopper: --backend must be auto, cpu or hopper, but is \"tpu\". Other GPUs are for explain"},
      {"check --target tpu", "froghopper: --target must be auto, cpu or hopper, but is \"tpu\""},
      {"check --target=tpu", "froghopper: --target must be auto, cpu or hopper, but is \"tpu\""},
      {"attend x.npy -o y.npy --target ''", "froghopper: --target must be auto, cpu or hopper, but is \"\""},
      {"attend x.npy -o ''", "froghopper: -o must not be empty"},
      {"bench " + line + " --host --target cpu", "leave --target cpu out."},
      {"prepare " + line + " --backend cpu",
       "--backend must be a GPU, as the CPU has no kernels to compile, but is \"cpu\". Use --backend h100"},
      {"explain fwd f32 b1 hq1", "a problem must be one argument, but is 4. Put it in quotes: 'fwd f32 b1 hq1'."},
      {"check fwd f32 b1 hq1", "a problem must be one argument, but is 4. Put it in quotes: 'fwd f32 b1 hq1'."},
      {"bench bwd f32 b1", "a problem must be one argument, but is 3. Put it in quotes: 'bwd f32 b1'."},
      {"prepare append f32", "a problem must be one argument, but is 2. Put it in quotes: 'append f32'."},
      {"explain " + line + " " + line, "one problem is explained, but here are 2. Run explain for each of them."},
      {"attend x.npy -o y.npy --window -3,0", "--window: -3 counts no keys. Use 0 or more, or -1 for all."},
      {"attend x.npy -o y.npy --window 0,-2", "--window: -2 counts no keys. Use 0 or more, or -1 for all."},
      {"check ''", "what must not be empty. Leave it out, or give a value."},
      {"explain ''", "line must not be empty. Give a value. froghopper explain --help"},
      {"attend x.npy --output ''", "--output must not be empty. Give a value."},
      {"bench " + line + " --ms 0", "froghopper: --ms must be positive, but is \"0\". froghopper bench --help"},
      {"attend x.npy -o y.npy --casual", "not expected: --casual. Did you mean --causal? froghopper attend --help"},
      {"attend x.npy -o y.npy --top_left=1", "Did you mean --top-left? "},
      {"attend x.npy -o y.npy --is-causal", "--is-causal. Did you mean --causal? "},
      {"attend x.npy -o y.npy --softmax_scale 0.5", "--softmax_scale. Did you mean --scale? "},
      {"attend x.npy -o y.npy --dtype bf16", "--dtype. The tensors in the files say that. "},
      {"attend x.npy -o y.npy --iters 9", "--iters. Did you mean --repeat? "},
      {"check " + line + " --dtype bf16", "--dtype. The type is the second word of the problem line. "},
      {"check " + line + " --device cpu", "--device. Did you mean --target? "},
      {"check " + line + " --backend cuda", "must be auto, cpu or hopper, but is \"cuda\", which is hopper here."},
      {"check " + line + " --target hopper:0",
       "must be auto, cpu or hopper, but is \"hopper:0\", which is hopper here."},
      {"bench " + line + " --iters=100", "--iters=100. Did you mean --rounds? "},
      {"explain " + line + " --num-kv-heads 2", "--num-kv-heads. In the problem line that is hkvN. "},
      {"prepare " + line + " --device=cuda", "--device=cuda. Did you mean --target? "},
      {"info --dtype bf16", "not expected: bf16 --dtype. froghopper info --help"},
      {"attend x.npy -o y.npy --nonsense", "not expected: --nonsense. froghopper attend --help"},
      {"explain " FROGHOPPER_SOURCE_DIR "/tests/cases/pages.txt",
       "is a file, but explain takes a problem line. Give one of its lines; check, bench and prepare take files."},
      {"explain /", "\"/\" is a folder, but explain takes a problem line."},
      {"explain " + line + " h200", "Write --target h200."},
      {"check --json", "--json must be followed by FILE.jsonl, but is not. froghopper check --help"},
      {"check --seed", "--seed must be followed by a number, but is not."},
      {"bench --ms", "--ms must be followed by a number, but is not."},
      {"bench --backend", "--backend must be followed by auto, cpu or hopper, but is not."},
      {"explain " + line + " --target", "--target must be followed by a value, but is not."},
      {"info --json --options", " are given, but only one of them can be. Leave out one."},
      {"probe", "must be run with the Python package, under torchrun"},
      {"check /", "\"/\" must be a file of problem lines, but is a folder"},
      {"check /dev/null", "\"/dev/null\" must have a problem line, but has none"},
      {"check -- -", "\"-\" is neither a file nor a problem"},
  };
  for (const auto& c : cases) {
    const Ran r = run(c.arguments);
    EXPECT_EQ(r.code, 2) << c.arguments;
    EXPECT_EQ(r.out, "") << c.arguments;
    EXPECT_TRUE(has(r.err, c.message)) << r.err;
    EXPECT_FALSE(has(r.err, "fh_")) << r.err;
  }
}

TEST_F(Program, quotes_a_part_of_long_words_and_survives_bytes_that_are_no_characters) {
  const std::string line = "'fwd f32 b1 hq1 hkv1 sq64 skv64 d64'", wide(100000, 'x');
  for (const std::string& arguments :
       {"bench " + line + " --ms " + wide, "check " + line + " --" + wide, wide, "explain " + wide,
        "explain 'fwd " + wide + "'", "check 'fwd " + wide + "'", "explain " + line + " --target " + wide,
        "bench " + line + " --hints " + wide}) {
    const Ran r = run(arguments);
    EXPECT_EQ(r.code, 2) << arguments.substr(0, 40);
    EXPECT_LT(r.err.size(), 2500u) << arguments.substr(0, 40);
  }
  const Ran r = run("explain 'fwd \xff' --json");
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.out, "\\\\xff")) << r.out << r.err;
}

TEST_F(Program, lists_commands_in_a_line_each) {
  EXPECT_TRUE(has(run("--help").out, "\n  bench                       Measure the speed of a backend\n  prepare "));
  EXPECT_TRUE(has(run("bench --help").out, "Measure the speed of a backend\n\nRuns each problem in rounds"));
}

// A file of a hundred cases is not checked once for each line that is none.
TEST_F(Program, computes_the_good_lines_of_a_file_and_names_the_others) {
  const std::string good = "fwd f32 b1 hq1 hkv1 sq9 skv9 d64", file = path("cases.txt");
  write("cases.txt", good + "\nfwd f99 b1\n\n" + good + " causal\nnonsense\n");
  const auto names_both = [&](const Ran& r) {
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_TRUE(has(r.err, "cases.txt, line 2, byte 33 of the file: \"f99\" at offset 4")) << r.err;
    EXPECT_TRUE(has(r.err, "cases.txt, line 5, byte ")) << r.err;
  };
  const Ran checked = run("check " + file);
  names_both(checked);
  EXPECT_TRUE(has(checked.out, "2 right, 0 wrong, 0 refused, 0 skipped, 2 not read\n")) << checked.out;
  const Ran records = run("check --json - " + file);
  names_both(records);
  EXPECT_EQ(std::ranges::count(records.out, '\n'), 2) << records.out;
  const Ran measured = run("bench --ms 1 --rounds 1 " + file);
  names_both(measured);
  EXPECT_TRUE(has(measured.out, good + " causal")) << measured.out;
  names_both(run("prepare --target h100 " + file));

  const Ran typed = run("check '" + good + "' 'fwd f99 b1' " + path("missing.txt"));
  EXPECT_EQ(typed.code, 2);
  EXPECT_TRUE(has(typed.out, "1 right, 0 wrong, 0 refused, 0 skipped, 2 not read\n")) << typed.out;
  EXPECT_TRUE(has(typed.err, "\"fwd f99 b1\", ") && has(typed.err, "is neither a file nor a problem")) << typed.err;
}

TEST_F(Program, complains_of_a_file_of_something_else_with_an_end) {
  std::string lines;
  for (int i = 0; i < 33; ++i) lines += "nonsense\n";
  write("cases.txt", lines);
  const Ran r = run("check " + path("cases.txt"));
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_TRUE(has(r.err, "line 20, ") && !has(r.err, "line 21, ")) << r.err;
  EXPECT_TRUE(has(r.err, "froghopper: 13 more cannot be read either.\n")) << r.err;
  write("cases.txt", std::string("fwd\0f32", 7));
  EXPECT_TRUE(
      has(run("check " + path("cases.txt")).err, "must be a text file of problem lines, but byte 3 of it is 0"));
}

// What a line leaves out has no 0 there, and none of the enumerators of C.
TEST_F(Program, refuses_problem_lines_in_their_own_words) {
  const std::string sizes = "b1 hq1 hkv1 sq1 skv9 d64";
  const struct {
    std::string line;
    const char* message;
  } cases[] = {
      {"append bf16 " + sizes + " causal",
       "causal is set and op is append; it belongs to the attention that reads the cache. Leave causal out.\n"},
      {"append bf16 " + sizes + " window1,1", "window_left is set and op is append; "},
      {"append bf16 " + sizes + " window1,1", " Leave window out.\n"},
      {"fwd bf16 " + sizes + " scales128",
       "scale_rows is 128 and k and v are bf16; only 8-bit types have scales. Leave scales out.\n"},
      {"fwd bf16 " + sizes + " window-3,0", "window_left is -3; it counts keys. Use -1 for all of them.\n"},
      {"fwd bf16 " + sizes + " norm",
       "op is fwd; it is of rows that are written to a cache. Set op to append, or "
       "leave norm out.\n"},
      {"bwd bf16 " + sizes + " maxlogit", "Set op to fwd, or leave maxlogit out.\n"},
      {"quantise bf16 " + sizes, "to quantise is to write 8-bit values. Write kv=e4m3 or kv=e5m2.\n"},
      {"quantise bf16 kv=e4m3 " + sizes + " seed3", "nothing is rotated. Add rotate, or leave seed out.\n"},
      {"append bf16 " + sizes + " rows9", "nothing is rotated. Add rotaryN, or leave rows out.\n"},
      {"append bf16 " + sizes + " rotary64", "but is 0. Write rowsN, the number of their rows.\n"},
      {"append bf16 " + sizes + " slots rotary64 rows9", "where a row is in its sequence. Add positions.\n"},
      {"append bf16 " + sizes + " slots page16 pages4", "not of a sequence. Write skv0.\n"},
      {"append bf16 " + sizes + " o=f32",
       "dtype_o must be left out where op is append, which writes no o, but is f32. Leave o out.\n"},
      {"append bf16 " + sizes + " varlen tq1 tkv1", "Leave tkv out; seq_kv is the rows of a sequence.\n"},
      {"fwd bf16 " + sizes + " tq4", "only packed sequences have a total. Add varlen, or leave tq out.\n"},
      {"fwd bf16 " + sizes + " acc sink", "Leave sink out, and begin with lse = the sinks and o = 0.\n"},
      {"fwd bf16 kv=e4m3 " + sizes + " tokenscales scales128", "or shares one. Leave one of them out.\n"},
  };
  for (const auto& c : cases) {
    write("cases.txt", c.line + "\n");
    for (const std::string& arguments :
         {"explain '" + c.line + "'", "check '" + c.line + "'", "bench " + path("cases.txt")}) {
      const Ran r = run(arguments);
      EXPECT_EQ(r.code, 2) << arguments;
      EXPECT_TRUE(has(r.err, c.message)) << arguments << r.err;
      EXPECT_FALSE(has(r.err, "FH_")) << arguments << r.err;
    }
  }
}

// What makes sense and is not computed has another exit code.
TEST_F(Program, refuses_what_is_not_computed_in_the_words_of_lines) {
  const std::string sizes = "b1 hq1 hkv1 sq1 skv9 d64";
  for (const auto& [line, message] :
       {std::pair{"fwd bf16 " + sizes + " scale-3",
                  "but is -3. Leave scale out for 1/sqrt(dim_qk), use scale0 for a scale of zero, or multiply q.\n"},
        {"append bf16 " + sizes + " rotary64 rows9 tables=f16", "Leave tables out, or write tables=f32.\n"},
        {"fwd bf16 kv=f16 " + sizes, "Leave kv out, or convert.\n"},
        {"fwd bf16 kv=e4m3 " + sizes + " o=e4m3", "Use f16, bf16 or f32, and quantise o afterwards.\n"},
        {"bwd bf16 " + sizes + " o=f32",
         "Leave o out; round o to the type of q, also where calls were merged in f32.\n"}}) {
    const Ran r = run("explain '" + line + "'");
    EXPECT_EQ(r.code, 4) << line;
    EXPECT_TRUE(has(r.err, message)) << r.err;
    EXPECT_FALSE(has(r.err, "FH_")) << r.err;
  }
}

// The CPU has no kernels to compile and none of these options, so it is no way out of having no GPU.
TEST_F(Program, offers_another_way_out_than_the_cpu_where_that_is_none) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const std::string line = " 'fwd bf16 b1 hq1 hkv1 sq9 skv9 d64'";
  for (const auto& [arguments, way_out] :
       {std::pair{"prepare", "or name a GPU that need not be here: --target h100."},
        {"bench --host", "or leave --host out."},
        {"bench --cold --tiles 128x64s2", "or leave --cold and --tiles out."},
        {"bench --hints tail=30%", "or leave --hints out."},
        {"bench --backend hopper --tiles 128x64s2", "or leave --tiles out."}}) {
    const Ran r = run(arguments + line);
    EXPECT_EQ(r.code, 3) << arguments;
    EXPECT_TRUE(has(r.err, way_out)) << arguments;
    EXPECT_FALSE(has(r.err, "target \"cpu\"")) << r.err;
  }
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(Program, says_how_many_pages_a_case_needs) {
  for (const auto& [line, pages] : {std::pair{"fwd bf16 b1 hq4 hkv2 sq1 skv64 d64 page16 pages3", 4},
                                    {"fwd bf16 kv=e4m3 b2 hq4 hkv2 sq1 skv64 d64 page16 pages2", 8},
                                    {"append bf16 b2 hq4 hkv2 sq9 skv50 d64 page4 pages2", 6}}) {
    for (const std::string command : {"check", "bench"}) {
      const Ran r = run(command + " --backend cpu '" + line + "'");
      EXPECT_NE(r.code, 0);
      EXPECT_TRUE(has(r.out + r.err, "pages must be at least " + std::to_string(pages))) << r.out << r.err;
      EXPECT_TRUE(has(r.out + r.err, "Write pages" + std::to_string(pages) + ".")) << r.out << r.err;
    }
  }
}

TEST_F(Program, names_the_command_that_was_meant) {
  EXPECT_TRUE(has(run("chck").err, "prepare, attend. Did you mean check? froghopper --help"));
  EXPECT_FALSE(has(run("nonsense").err, "Did you mean"));
}

TEST_F(Program, attends_with_a_word_on_a_corner_without_a_mask) {
  write("in.safetensors", print_safetensors(small_file()));
  const std::string all = "attend --backend cpu " + path("in.safetensors") + " -o " + path("o.npy") + " --top-left";
  const Ran r = run(all);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.err, "--top-left is not used: without --causal, --window or alibi_slopes nothing is aligned."));
  EXPECT_EQ(run(all + " --causal").err, "");
}

TEST_F(Program, attend_tells_axes_that_are_exchanged_from_heads_that_do_not_fit) {
  TensorFile file;
  file.tensors["q"] = ones(Element::f32, {1, 4, 3, 8});
  for (const char* const name : {"k", "v"}) file.tensors[name] = ones(Element::f32, {1, 2, 5, 8});
  write("in.safetensors", print_safetensors(file));
  const Ran r = run("attend " + path("in.safetensors") + " -o " + path("o.npy"));
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(
      has(r.err,
          "heads_kv is 5 and heads_q is 3; heads_kv must divide heads_q. Use 1 or 3. If heads are before rows, "
          "exchange both axes.\n"));
  for (const char* const name : {"k", "v"}) file.tensors[name] = ones(Element::f32, {1, 3, 5, 8});  // nor then
  write("in.safetensors", print_safetensors(file));
  EXPECT_FALSE(has(run("attend " + path("in.safetensors") + " -o " + path("o.npy")).err, "before rows"));
}

// Heads divide as they are read, so that it is computed, with a word.
TEST_F(Program, attend_says_that_heads_seem_to_be_before_rows) {
  const auto said = [&](std::vector<int64_t> q, std::vector<int64_t> k) {
    TensorFile file;
    file.tensors["q"] = ones(Element::f32, std::move(q));
    for (const char* const name : {"k", "v"}) file.tensors[name] = ones(Element::f32, k);
    write("in.safetensors", print_safetensors(file));
    const Ran r = run("attend --backend cpu " + path("in.safetensors") + " -o " + path("o.npy"));
    EXPECT_EQ(r.code, 0) << r.err;
    return r.err;
  };
  EXPECT_EQ(said({1, 4, 30, 8}, {1, 2, 30, 8}),
            "froghopper: q is [1, 4, 30, 8] and k is [1, 2, 30, 8], read as [batch, seq, heads, dim]: 30 heads of 4 "
            "queries and 2 keys. If heads are before rows, exchange both axes.\n");
  EXPECT_TRUE(has(said({4, 30, 8}, {4, 30, 8}), "read as [seq, heads, dim]: 30 heads of 4 queries and 4 keys."));
  EXPECT_EQ(said({1, 30, 4, 8}, {1, 30, 2, 8}), "");
  EXPECT_EQ(said({1, 1, 30, 8}, {1, 40, 30, 8}), "") << "a step of decoding";
}

TEST_F(Program, attend_names_the_tensors_of_a_file_without_q) {
  TensorFile file;
  for (const char* const name : {"query", "key", "value"}) file.tensors[name] = ones(Element::f32, {1, 3, 2, 8});
  write("in.safetensors", print_safetensors(file));
  const std::string all = "attend " + path("in.safetensors") + " -o " + path("o.npy");
  EXPECT_TRUE(has(run(all).err,
                  "there is no tensor q beside key, query, value; attention needs q, k and v. Name them "
                  "so.\n"));
}

TEST_F(Program, attend_says_how_to_save_what_it_cannot_read) {
  const auto npy = [](const std::string& descr, const std::string& fortran) {
    const std::string header = "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': (1, 1, 8), }\n";
    return std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(header.size()) + '\0' + header;
  };
  for (const auto& [descr, fortran, way_out] :
       {std::tuple{"<f8", "False", "Save it with astype(np.float32), or with bf16 as .safetensors.\n"},
        {">f4", "False", "Save it with astype(\"<f4\").\n"},
        {"<f4", "True", "only C order is read. Save np.ascontiguousarray(x).\n"}}) {
    for (const char* const name : {"q.npy", "k.npy", "v.npy"}) write(name, npy(descr, fortran));
    const Ran r = run("attend " + path("q.npy") + "," + path("k.npy") + "," + path("v.npy") + " -o " + path("o.npy"));
    EXPECT_EQ(r.code, 2);
    EXPECT_TRUE(has(r.err, way_out)) << r.err;
  }
}

// Who knows one name of the option where a command runs need not know which command has which.
TEST_F(Program, takes_target_and_backend_everywhere) {
  const std::string line = "'fwd f32 b1 hq1 hkv1 sq9 skv9 d64'";
  write("in.safetensors", print_safetensors(small_file()));
  for (const std::string& arguments :
       {"explain --backend cpu " + line, "explain --target cpu " + line, "check --target cpu " + line,
        "bench --ms 1 --rounds 1 --target cpu " + line, "prepare --backend h200 " + line,
        "attend --target cpu " + path("in.safetensors") + " -o " + path("out.safetensors")}) {
    const Ran r = run(arguments);
    EXPECT_EQ(r.code, 0) << arguments << r.err;
  }
}

TEST_F(Program, says_what_a_first_word_that_is_no_command_means) {
  for (const auto& [arguments, said] :
       {std::pair{"help", "\"help\" is no command; it must be one of info, explain, "},
        {"help", "Did you mean --help? "},
        {"-v", "Did you mean --version? "},
        {"--json info", "--json must follow the command, but is before it. Write froghopper info --json. "}}) {
    const Ran r = run(arguments);
    EXPECT_EQ(r.code, 2) << arguments;
    EXPECT_TRUE(has(r.err, said)) << r.err;
  }
}

TEST_F(Program, says_what_no_driver_would_mend) {
  if (check::hopper_is_here()) GTEST_SKIP() << "there is a Hopper GPU";
  const Ran r = run("explain 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64' --target hopper");
  EXPECT_TRUE(has(r.out, "\non a GPU     no: dtype is f32; the Hopper kernels take f16 and bf16.")) << r.out;
}

// The library logs it; who runs the program has no log.
TEST_F(Program, says_which_variable_is_ignored) {
  setenv("FROGHOPPER_THREADS", "abc", 1);
  const Ran r = run("check 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64'");
  unsetenv("FROGHOPPER_THREADS");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.err, "froghopper: the environment's FROGHOPPER_THREADS is \"abc\" and is ignored")) << r.err;
  EXPECT_FALSE(has(run("check 'fwd f32 b1 hq1 hkv1 sq9 skv9 d64'").err, "environment"));
}

}  // namespace
}  // namespace froghopper::files
