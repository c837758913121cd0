// SPDX-License-Identifier: Apache-2.0
// Claims about measured figures of a machine: they change the predicted times and the choice of a scheme as they
// should, from a struct, a text or a file that the environment names; a text that makes no sense is refused with its
// line.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/support/cp_attention.hpp"

namespace froghopper {
namespace {

using test::planned;

fh_problem sequence() {
  fh_problem p = fh_problem_init();
  p.batch = 1, p.heads_q = 16, p.heads_kv = 16, p.seq_q = p.seq_kv = 32768, p.dim_qk = 128, p.causal = 1;
  return p;
}

struct Asked {
  fh_problem whole = sequence();
  fh_cp_topology topology = fh_cp_topology_init();
  fh_cp_problem problem = fh_cp_problem_init();
  // All keys arrive before the calls, so that times follow by hand.
  Asked() {
    problem.whole = &whole, problem.ranks = 4, problem.topology = &topology;
    setenv("FROGHOPPER_CP_CHUNKS", "0", 1);
  }
  ~Asked() { unsetenv("FROGHOPPER_CP_CHUNKS"); }
  double seconds(fh_cp_scheme scheme) {
    problem.scheme = scheme;
    return fh_cp_plan_seconds(planned(problem, "h100").get());
  }
  fh_cp_scheme chosen() {
    problem.scheme = FH_CP_AUTO;
    return fh_cp_plan_scheme(planned(problem, "h100").get());
  }
};

TEST(ContextParallelTopology, figures_that_are_not_given_are_the_librarys) {
  Asked with, without;
  without.problem.topology = nullptr;
  EXPECT_EQ(with.seconds(FH_CP_RING), without.seconds(FH_CP_RING));
  with.topology.bandwidth = 295e9, with.topology.latency = 100e-6, with.topology.slowdown = 1.52;
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER})
    EXPECT_EQ(with.seconds(scheme), without.seconds(scheme));
}

// A rank receives 3/4 of 2 x 128 MiB for a quarter of its columns: at 1e9 bytes a second that hides everything else.
TEST(ContextParallelTopology, bytes_take_the_time_that_was_measured) {
  Asked a;
  a.whole.causal = 0, a.topology.bandwidth = 1e9;
  const double moved = 3.0 * (32768 / 4) * 16 * 128 * 2 * 2;
  EXPECT_NEAR(a.seconds(FH_CP_ALL_GATHER), moved / 1e9, 0.01);
  a.topology.gather_bandwidth = 0.5e9;
  EXPECT_NEAR(a.seconds(FH_CP_ALL_GATHER), moved / 0.5e9, 0.01);
  EXPECT_NEAR(a.seconds(FH_CP_RING), moved / 1e9, 0.01);  // from one peer at a time
  a.problem.transfers = FH_CP_PEER_COPIES;
  EXPECT_LT(a.seconds(FH_CP_ALL_GATHER), 0.1);
  a.topology.copy_bandwidth = 2e9;
  EXPECT_NEAR(a.seconds(FH_CP_ALL_GATHER), moved / 2e9, 0.01);
}

TEST(ContextParallelTopology, the_choice_follows) {
  Asked a;
  a.topology.bandwidth = 30e9, a.topology.slowdown = 1;
  EXPECT_NE(a.chosen(), FH_CP_RING);  // all-to-all moves less
  a.topology = fh_cp_topology_init();
  a.topology.latency = 1e-6, a.topology.slowdown = 1, a.topology.call = 1e-7;
  EXPECT_EQ(a.chosen(), FH_CP_RING);
  a.topology.gather_bandwidth = 1e6;  // as where all peers share one link
  EXPECT_EQ(a.chosen(), FH_CP_RING);
  a.topology = fh_cp_topology_init(), a.topology.latency = 1e-3;
  EXPECT_NE(a.chosen(), FH_CP_RING);  // which waits once a step
}

TEST(ContextParallelTopology, a_text_is_read) {
  fh_cp_topology t = fh_cp_topology_init();
  ASSERT_EQ(fh_cp_topology_parse("# 4 ranks\n\nbandwidth 3.8e+11 # bytes/s\n  slowdown 1.03\ncall 2e-5", &t), FH_OK)
      << fh_cp_last_error();
  EXPECT_EQ(t.bandwidth, 3.8e11);
  EXPECT_EQ(t.slowdown, 1.03);
  EXPECT_EQ(t.call, 2e-5);
  EXPECT_EQ(t.latency, 0);
  EXPECT_EQ(t.size, sizeof t);
}

TEST(ContextParallelTopology, what_makes_no_sense_is_said) {
  const std::pair<const char*, const char*> refused[] = {
      {"latency 1\nspeed 3\n", "line 2 of the topology begins with \"speed\", but must begin with a field"},
      {"speed 3", "must begin with a field of fh_cp_topology. Measure again with this version."},
      {"bandwith 3e11", "Did you mean bandwidth? Write bandwidth, a blank and the number."},
      {"copy_bandwith 3e11", "Did you mean copy_bandwidth?"},
      {"bandwidth=3e11", "Did you mean bandwidth? Write bandwidth, a blank and the number."},
      {"LATENCY: 1e-5", "Did you mean latency?"},
      {"bandwidth 300GB/s", "Write seconds, bytes a second or FLOP a second, without the unit."},
      {"call 1\n\ncall 2", "line 3 of the topology is of call, which line 1 has already. Leave one of them."},
      {"bandwidth", "line 1 of the topology is \"bandwidth\", but must be a name and a number"},
      {"bandwidth 3e9x", "must be a name and a number"},
      {"bandwidth 3 4", "must be a name and a number"},
      {"latency -1", "topology.latency is -1, but must be 0 or a finite number above 0"},
      {"latency inf", "topology.latency is inf, but must be"},
      {"memory nan", "topology.memory is nan, but must be"},
      {"slowdown 0.5", "topology.slowdown is 0.5, but must be 0 or a finite number from 1 on"}};
  for (const auto& [text, part] : refused) {
    fh_cp_topology t = fh_cp_topology_init();
    EXPECT_EQ(fh_cp_topology_parse(text, &t), FH_INVALID_PROBLEM) << text;
    EXPECT_NE(std::string(fh_cp_last_error()).find(part), std::string::npos) << fh_cp_last_error();
  }
  fh_cp_topology given = fh_cp_topology_init();
  EXPECT_EQ(fh_cp_topology_parse(nullptr, &given), FH_INVALID_PROBLEM);
  EXPECT_STREQ(fh_cp_last_error(), "fh_cp_topology_parse: text must point to your text, but is NULL. Set it.");
  EXPECT_EQ(fh_cp_topology_parse("", nullptr), FH_INVALID_PROBLEM);
  EXPECT_STREQ(fh_cp_last_error(),
               "fh_cp_topology_parse: topology must point to your topology, but is NULL. Set it.");
  Asked a;
  a.topology.slowdown = 0.5;
  EXPECT_NE(std::string(fh_cp_explain(&a.problem, "h100")).find("topology.slowdown is 0.5"), std::string::npos);
}

// Figures of a struct that was not initialised would be ignored, and those of a newer header too.
TEST(ContextParallelTopology, a_struct_has_a_size) {
  Asked a;
  a.topology.size = 0, a.topology.bandwidth = 1e9;
  const char* const said =
      "fh_cp_topology.size is 0; it must hold sizeof(fh_cp_topology). Start from "
      "fh_cp_topology_init().";
  EXPECT_STREQ(fh_cp_explain(&a.problem, "h100"), said);
  EXPECT_EQ(fh_cp_topology_parse("latency 1", &a.topology), FH_INVALID_PROBLEM);
  EXPECT_EQ(fh_cp_last_error(), std::string("fh_cp_topology_parse: ") + said);
  EXPECT_EQ(a.topology.latency, 0);

  struct {
    fh_cp_topology known = fh_cp_topology_init();
    double later = 0;
  } newer;
  newer.known.size = sizeof newer;
  a.problem.topology = &newer.known;
  EXPECT_GT(a.seconds(FH_CP_RING), 0);
  newer.later = 1;
  EXPECT_NE(std::string(fh_cp_explain(&a.problem, "h100")).find("fh_cp_topology has a field at byte "),
            std::string::npos);
  newer.later = 0;
  EXPECT_EQ(fh_cp_topology_parse("latency 1", &newer.known), FH_OK) << fh_cp_last_error();
  EXPECT_EQ(newer.known.size, sizeof newer);
}

TEST(ContextParallelTopology, the_environment_names_a_file) {
  const std::string path = testing::TempDir() + "cp_topology_test.txt";
  std::ofstream(path) << "bandwidth 1e9\n";
  Asked a;
  a.topology.bandwidth = 1e9;
  const double wanted = a.seconds(FH_CP_RING);
  a.problem.topology = nullptr;
  setenv("FROGHOPPER_CP_TOPOLOGY", path.c_str(), 1);
  EXPECT_EQ(a.seconds(FH_CP_RING), wanted);
  std::string text = fh_cp_explain(&a.problem, "h100");
  EXPECT_NE(text.find("times by " + path + ": 100.0 us and 1e+09 bytes/s within a host"), std::string::npos) << text;
  std::ofstream(path) << "bandwidth fast\n";
  text = fh_cp_explain(&a.problem, "h100");
  EXPECT_NE(text.find(path + ": line 1 of the topology"), std::string::npos) << text;
  std::remove(path.c_str());
  text = fh_cp_explain(&a.problem, "h100");
  EXPECT_NE(text.find("FROGHOPPER_CP_TOPOLOGY names " + path + ", which cannot be read"), std::string::npos) << text;
  unsetenv("FROGHOPPER_CP_TOPOLOGY");
}

}  // namespace
}  // namespace froghopper
