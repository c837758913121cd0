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

}  // namespace
}  // namespace froghopper::files
