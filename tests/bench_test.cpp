// SPDX-License-Identifier: Apache-2.0
// What `froghopper bench` counts (cli/work.hpp) and what it writes.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "check/read_speed.hpp"
#include "cli/work.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

namespace {

Problem problem(const std::string& line) {
  auto p = Problem::parse(line);
  EXPECT_TRUE(p) << (p ? "" : p.failure().text);
  return p ? *p : Problem{};
}

TEST(Work, SquareCausalIsHalf) {
  const Problem full = problem("fwd bf16 b3 hq4 hkv2 sq512 skv512 d128");
  const Problem causal = problem("fwd bf16 b3 hq4 hkv2 sq512 skv512 d128 causal");
  EXPECT_EQ(flops(full, {}), 4.0 * 128 * 3 * 4 * 512 * 512);
  EXPECT_EQ(flops(causal, {}) * 2, flops(full, {}));
}

TEST(Work, CausalWithOtherLengths) {
  // Rows see 4 and 5 of 5 keys, or 1 and 2, the last of each half.
  EXPECT_EQ(visible_pairs(problem("fwd bf16 b1 hq1 hkv1 sq2 skv5 d64 causal"), 2, 5), 3.5 + 4.5);
  EXPECT_EQ(visible_pairs(problem("fwd bf16 b1 hq1 hkv1 sq2 skv5 d64 causal topleft"), 2, 5), 0.5 + 1.5);
  // The first three rows of five see no key of two.
  EXPECT_EQ(visible_pairs(problem("fwd bf16 b1 hq1 hkv1 sq5 skv2 d64 causal"), 5, 2), 0.5 + 1.5);
}

TEST(Work, WindowCountsWhatItShows) {
  EXPECT_EQ(visible_pairs(problem("fwd bf16 b1 hq1 hkv1 sq4 skv4 d64 window1,1"), 4, 4), 2 + 3 + 3 + 2);
}

TEST(Work, SequencesCountTheirOwnRows) {
  const Problem p = problem("fwd bf16 b2 hq3 hkv3 sq8 skv9 d64 dv128 varlen tq10 tkv12");
  int32_t cu_q[] = {0, 2, 10}, cu_kv[] = {0, 9, 12};
  Views lengths;
  lengths.cu_seqlens_q.data = cu_q;
  lengths.cu_seqlens_kv.data = cu_kv;
  EXPECT_EQ(flops(p, lengths), 2.0 * (64 + 128) * 3 * (2 * 9 + 8 * 3));
}

TEST(Work, EveryTensorMovesOnce) {
  EXPECT_EQ(bytes_moved(problem("fwd f32 b2 hq4 hkv1 sq8 skv16 d64 dv32")),
            4.0 * (2 * 8 * 4 * (64 + 32) + 2 * 16 * 1 * (64 + 32)) + 4.0 * 2 * 8 * 4);
}

// The keys of used rows, and of windows alone; packed sequences without the rows of none.
TEST(Work, BytesAreOfRowsThatCount) {
  int32_t used_kv[] = {5, 16}, cu_q[] = {0, 2, 9};
  Views lengths;
  lengths.seqused_kv.data = used_kv;
  const auto of = [&](const std::string& line) { return bytes(problem(line), lengths); };
  const double row_q = 2 * (64 + 64) + 4, row_kv = 2 * (64 + 64);
  EXPECT_EQ(of("fwd bf16 b2 hq4 hkv2 sq1 skv16 d64"), row_q * 2 * 4 + row_kv * 2 * 32);
  EXPECT_EQ(of("fwd bf16 b2 hq4 hkv2 sq1 skv16 d64 seqused page8 pages9"), row_q * 2 * 4 + row_kv * 2 * 21);
  EXPECT_EQ(of("fwd bf16 b2 hq4 hkv2 sq1 skv16 d64 seqused window7,0"), row_q * 2 * 4 + row_kv * 2 * 13);
  EXPECT_EQ(of("fwd bf16 b2 hq4 hkv2 sq2 skv16 d64 window7,0"), row_q * 4 * 4 + row_kv * 2 * 18);
  lengths.cu_seqlens_q.data = cu_q;
  EXPECT_EQ(of("fwd bf16 b2 hq4 hkv2 sq9 skv16 d64 varlen tq20 seqused page8 pages9 causal"),
            row_q * 9 * 4 + row_kv * 2 * 21);
  EXPECT_EQ(of("append bf16 kv=e4m3 b2 hq4 hkv2 sq1 skv16 d64 seqused"), 2 * 2 * 64 * 2 * 4 + (2 + 1) * 128 * 2 * 2);
}

TEST(Work, BackwardIsTwoAndAHalfTimesForward) {
  const std::string rest = " b2 hq4 hkv2 sq64 skv96 d64 dv32 causal";
  EXPECT_EQ(flops(problem("bwd bf16" + rest), {}), 2.5 * flops(problem("fwd bf16" + rest), {}));
  EXPECT_EQ(flops(problem("bwd bf16" + rest + " acc"), {}), flops(problem("bwd bf16" + rest), {}));
}

// tests/bindings_test.py asks bench/measure/work.py for the same.
TEST(Work, IsWhatTheGoldenFileSays) {
  std::ifstream file(FROGHOPPER_SOURCE_DIR "/tests/golden/work.txt");
  int lines = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    const size_t arrow = line.find(" -> ");
    ASSERT_NE(arrow, std::string::npos) << line;
    const Problem p = problem(line.substr(0, arrow));
    EXPECT_EQ(text("{} -> {:.0f} {:.0f}", p.line(), flops(p, {}), bytes_moved(p)), line);
    ++lines;
  }
  EXPECT_GT(lines, 10);
}

struct Ended {
  int exit_code;
  std::vector<nlohmann::json> lines;
};

// The program with these arguments and --json; its results and messages are not looked at.
Ended run_bench(const std::string& arguments) {
  const std::string json = testing::TempDir() + "bench_test_" + std::to_string(getpid()) + ".jsonl";
  std::filesystem::remove(json);
  const std::string command =
      std::string(FROGHOPPER_PROGRAM) + " bench " + arguments + " --json " + json + " >/dev/null 2>&1";
  Ended ended{WEXITSTATUS(std::system(command.c_str())), {}};
  std::ifstream file(json);
  for (std::string line; std::getline(file, line);) ended.lines.push_back(nlohmann::json::parse(line));
  std::filesystem::remove(json);
  return ended;
}

TEST(Bench, OneJsonLineAMeasurement) {
  const std::string line = "fwd f32 b1 hq2 hkv2 sq64 skv64 d64 causal";
  const Ended run = run_bench("'" + line + "' 'fwd bf16 b1 hq1 hkv1 sq33 skv47 d64' --backend cpu --ms 1 --rounds 3");
  EXPECT_EQ(run.exit_code, 0);
  ASSERT_EQ(run.lines.size(), 2u);
  const nlohmann::json& first = run.lines[0];
  std::vector<std::string> keys;
  for (const auto& item : first.items()) keys.push_back(item.key());
  const std::vector<std::string> wanted = {"bytes",        "cold",    "commit",  "date",      "driver",
                                           "gbps",         "gpu",     "impl",    "ms",        "pass",
                                           "plan",         "problem", "read_by", "read_gbps", "read_share",
                                           "sm_clock_mhz", "spread",  "tflops",  "turn_group"};
  EXPECT_EQ(keys, wanted);  // nlohmann::json sorts them
  EXPECT_EQ(first["problem"], line);
  EXPECT_EQ(first["impl"], "froghopper");
  EXPECT_EQ(first["pass"], "fwd");
  EXPECT_GT(first["ms"], 0.0);
  // tflops is rounded to 1e-4, of 2^20 FLOP here.
  EXPECT_NEAR(first["tflops"].get<double>(), 1048576 / first["ms"].get<double>() / 1e9, 1e-4);
  EXPECT_NE(first["turn_group"], run.lines[1]["turn_group"]);  // they did not run in turns
}

TEST(Bench, MeasuresTheBackwardPassAfterAForwardPass) {
  const Ended run = run_bench(
      "'bwd f32 b1 hq2 hkv2 sq64 skv64 d64' 'bwd bf16 b2 hq2 hkv1 sq60 skv50 d64 varlen tq99 tkv88 sink acc' "
      "--backend cpu --ms 1 --rounds 3");
  EXPECT_EQ(run.exit_code, 0);
  ASSERT_EQ(run.lines.size(), 2u);
  EXPECT_EQ(run.lines[0]["pass"], "bwd");
  EXPECT_NEAR(run.lines[0]["tflops"].get<double>(), 5242880 / run.lines[0]["ms"].get<double>() / 1e9, 1e-4);
}

// No rows, no keys, no sequences.
TEST(Bench, GivesNoSpeedWhereThereIsNothingToCompute) {
  const Ended run = run_bench(
      "'fwd bf16 b0 hq1 hkv1 sq64 skv64 d64' 'fwd bf16 b1 hq1 hkv1 sq0 skv64 d64' 'fwd bf16 b1 hq1 hkv1 sq64 skv0 "
      "d64' "
      "'fwd bf16 b1 hq1 hkv1 sq9 skv9 d64 varlen tq0 tkv9' 'bwd f32 b1 hq1 hkv1 sq0 skv9 d64' "
      "'bwd f32 b1 hq1 hkv1 sq9 skv0 d64' 'quantise bf16 kv=e4m3 b1 hq1 hkv1 sq0 skv0 d64 scales128' "
      "'append bf16 b1 hq1 hkv1 sq0 skv9 d64' 'append bf16 b0 hq1 hkv1 sq9 skv9 d64' --backend cpu --ms 1 --rounds "
      "1");
  EXPECT_EQ(run.exit_code, 0);
  ASSERT_EQ(run.lines.size(), 9u);
  for (const nlohmann::json& line : run.lines) {
    EXPECT_GT(line["ms"], 0.0);
    for (const char* const speed : {"tflops", "bytes", "gbps"}) EXPECT_TRUE(line[speed].is_null()) << line;
  }
}

TEST(Bench, MeasuresWhatIsWrittenToACache) {
  const Ended run = run_bench(
      "'append bf16 b3 hq4 hkv2 sq2 skv50 d64 seqused page16 pages12 rotary64 rows50 norm' "
      "'append f16 kv=e4m3 b1 hq4 hkv2 sq9 skv0 d64 page8 pages4 slots tokenscales' --backend cpu --ms 1 --rounds 3");
  EXPECT_EQ(run.exit_code, 0);
  ASSERT_EQ(run.lines.size(), 2u);
  EXPECT_EQ(run.lines[0]["pass"], "append");
  EXPECT_TRUE(run.lines[0]["tflops"].is_null());
  EXPECT_EQ(run.lines[0]["bytes"], 2 * 2 * 64 * 6 * 4 + 2 * 2 * 128 * 6 * 2);
  EXPECT_NEAR(run.lines[0]["gbps"].get<double>(),
              run.lines[0]["bytes"].get<double>() / run.lines[0]["ms"].get<double>() / 1e6, 0.051);
  for (const char* const of_gpu : {"read_share", "read_gbps", "read_by"})
    EXPECT_TRUE(run.lines[0][of_gpu].is_null()) << of_gpu;
}

// Each is one launch, which reads ten times what L2 holds and writes little.
TEST(Bench, ComparesWithKernelsThatOnlyRead) {
  for (const char* const card : {"h100", "h200"}) {
    const Device device = known_device(card);
    const auto readers = check::readers(device);
    ASSERT_TRUE(readers) << readers.failure().text;
    std::vector<std::string> kernels;
    for (const check::Reader& reader : *readers) {
      EXPECT_GT(reader.bytes, 10.0 * static_cast<double>(device.l2_bytes)) << reader.plan.line();
      ASSERT_FALSE(reader.plan.launches.empty());
      kernels.push_back(reader.plan.launches.front().kernel.name);
      const auto* const delta = std::get_if<DeltaStep>(&reader.plan.launches.front().step);
      EXPECT_TRUE(!delta || reader.plan.workspace.dq_semaphores.bytes > 0) << "it clears sums";
      EXPECT_TRUE(!delta || reader.plan.launches.size() == 1);
      const Problem& p = reader.of.problem;
      const double read = p.backward() ? 2.0 * double(p.rows_q() * p.heads_q * p.dim_v) * 2
                                       : double(p.rows_kv() * p.heads_kv * (p.dim_qk + p.dim_v)) * 2;
      EXPECT_GT(read, 0.97 * reader.bytes);
      EXPECT_LE(read, reader.bytes);
    }
    EXPECT_EQ(kernels, (std::vector<std::string>{"delta.bf16.dv128", "fwd.bf16.d128.q64.kv64.s3.packgqa.split"}));
  }
}

TEST(Bench, RefusesWhatItCannotMeasure) {
  EXPECT_EQ(run_bench("'fwd bf16 b1 hq3 hkv2 sq64 skv64 d64'").exit_code, 2);
  EXPECT_EQ(run_bench("no/such/suite.txt").exit_code, 2);
  EXPECT_EQ(run_bench("--host --backend cpu").exit_code, 2);
  EXPECT_EQ(run_bench("--cold --backend cpu 'fwd bf16 b1 hq1 hkv1 sq1 skv9 d64'").exit_code, 2);
  EXPECT_EQ(run_bench("--cold 'bwd bf16 b1 hq1 hkv1 sq1 skv9 d64'").exit_code, 2);
  EXPECT_EQ(run_bench("--rounds 0").exit_code, 2);
  EXPECT_EQ(run_bench("--backend cpu --tiles 128x64s3").exit_code, 2) << "tiles are for a GPU";
  EXPECT_EQ(run_bench("--backend cpu --hints deferred=8").exit_code, 2);
  EXPECT_EQ(run_bench("--hints colour=red").exit_code, 2);
  EXPECT_EQ(run_bench("--tiles 128x64").exit_code, 2);
}

}  // namespace

}  // namespace froghopper::cli
