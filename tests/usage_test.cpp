// SPDX-License-Identifier: Apache-2.0
// tests: what the program froghopper says of options and arguments that make no sense.
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
      {"bench " + line + " --hints x", "--hints must be words as in 'section=16MiB tail=30% late=8', but is \"x\""},
      {"prepare " + line + " --target cpu",
       "--target must be a GPU, as the CPU has no kernels to compile, but is \"cpu\""},
      {"explain", "froghopper: line must be given, but is not. froghopper explain --help"},
      {"attend x.npy", "froghopper: --output must be given"},
      {"check --backend tpu", "--backend must be auto, cpu or hopper, but is \"tpu\". Other GPUs are for explain"},
      {"explain fwd f32 b1 hq1", "a problem must be one argument, but is 4. Put it in quotes: 'fwd f32 b1 hq1'."},
      {"check fwd f32 b1 hq1", "a problem must be one argument, but is 4. Put it in quotes: 'fwd f32 b1 hq1'."},
      {"bench bwd f32 b1", "a problem must be one argument, but is 3. Put it in quotes: 'bwd f32 b1'."},
      {"prepare append f32", "a problem must be one argument, but is 2. Put it in quotes: 'append f32'."},
      {"explain " + line + " " + line, "one problem is explained, but here are 2. Run explain for each of them."},
      {"attend x.npy -o y.npy --window -3,0", "--window: -3 counts no keys. Use 0 or more, or -1 for all."},
      {"attend x.npy -o y.npy --window 0,-2", "--window: -2 counts no keys. Use 0 or more, or -1 for all."},
      {"check ''", "what must not be empty"},
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
  };
  for (const auto& c : cases) {
    write("cases.txt", c.line + "\n");
    for (const std::string& arguments :
         {"explain '" + c.line + "'", "check '" + c.line + "'", "bench " + path("cases.txt")}) {
      const Ran r = run(arguments);
      EXPECT_EQ(r.code, 2) << arguments;
      EXPECT_TRUE(has(r.err, c.message)) << arguments;
      EXPECT_FALSE(has(r.err, "FH_")) << arguments << r.err;
    }
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

}  // namespace
}  // namespace froghopper::files
