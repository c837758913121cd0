// SPDX-License-Identifier: Apache-2.0
// Claims: the library does through its public headers what they say, on a machine with or without a GPU: results,
// refusals with the call's name in front, errors per thread, structs of other versions, the log.
#include <gtest/gtest.h>
#include <froghopper/froghopper.hpp>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

namespace {

namespace fh = froghopper;

// A problem whose answer is known by hand: every query is zero, so all keys it sees weigh the same, and o is the mean
// of their v. v's row j is j, so a causal query i gets i / 2 and log(i + 1).
struct KnownAnswer {
  int64_t rows = 5, heads = 2, dim = 8;
  fh::Problem problem;
  std::vector<float> q, k, v, o, lse;

  explicit KnownAnswer(int64_t rows_ = 5) : rows(rows_) {
    problem = {.dtype = fh::Dtype::f32,
               .heads_q = heads,
               .heads_kv = 1,
               .seq_q = rows,
               .seq_kv = rows,
               .dim_qk = dim,
               .causal = true};
    const auto size = static_cast<size_t>(rows * dim);
    q.assign(size * 2, 0.0f), k.assign(size, 1.0f), v.assign(size, 0.0f);
    for (size_t i = 0; i < size; ++i) v[i] = static_cast<float>(i / static_cast<size_t>(dim));
    o.assign(size * 2, NAN), lse.assign(static_cast<size_t>(rows * heads), NAN);
  }

  fh::Tensors tensors() {
    return {.q = fh::dense(q.data(), rows, heads, dim),
            .k = fh::dense(k.data(), rows, 1, dim),
            .v = fh::dense(v.data(), rows, 1, dim),
            .o = fh::dense(o.data(), rows, heads, dim),
            .lse = lse.data()};
  }

  bool untouched() const {
    for (float x : o)
      if (!std::isnan(x)) return false;
    return true;
  }

  double error() const {
    double worst = 0;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t d = 0; d < dim; ++d) {
          const double off = o[static_cast<size_t>((row * heads + head) * dim + d)] - static_cast<double>(row) / 2;
          worst = std::max(worst, std::isnan(off) ? INFINITY : std::abs(off));
        }
        const double off = lse[static_cast<size_t>(head * rows + row)] - std::log(static_cast<double>(row + 1));
        worst = std::max(worst, std::isnan(off) ? INFINITY : std::abs(off));
      }
    return worst;
  }
};

constexpr double rounding = 1e-5;  // of a mean of a few hundred floats of size 100

fh_problem c_problem() { return fh::to_c(KnownAnswer().problem); }

TEST(api, a_plan_runs_on_the_cpu) {
  KnownAnswer known;
  const fh::Plan plan(known.problem, "cpu");
  EXPECT_FALSE(plan.on_gpu());
  EXPECT_EQ(plan.workspace_bytes(), 0u);
  EXPECT_EQ(plan.line().rfind("fwd f32 b1 hq2 hkv1 sq5 skv5 d8 causal -> cpu", 0), 0u) << plan.line();
  plan.run(known.tensors());
  EXPECT_LT(known.error(), rounding);
}

TEST(api, one_call_finds_its_plan) {
  for (int again = 0; again < 3; ++again)
    for (const int64_t rows : {5, 9}) {  // two problems in turns
      KnownAnswer known(rows);
      fh::attention(known.problem, known.tensors(), "cpu");
      EXPECT_LT(known.error(), rounding) << rows;
    }
}

TEST(api, a_moved_plan_still_runs) {
  KnownAnswer known;
  fh::Plan plan(known.problem, "cpu");
  const fh::Plan moved = std::move(plan);
  moved.run(known.tensors());
  EXPECT_LT(known.error(), rounding);
}

TEST(api, auto_takes_the_cpu_for_what_no_gpu_computes) {
  KnownAnswer known;  // f32
  const fh::Plan plan(known.problem);
  EXPECT_FALSE(plan.on_gpu());
  plan.run(known.tensors());
  EXPECT_LT(known.error(), rounding);
}

TEST(api, nothing_to_write_succeeds) {
  const fh::Tensors nothing;
  EXPECT_NO_THROW(
      fh::attention({.heads_q = 1, .heads_kv = 1, .seq_q = 0, .seq_kv = 0, .dim_qk = 64}, nothing, "cpu"));
  EXPECT_NO_THROW(
      fh::attention({.batch = 0, .heads_q = 1, .heads_kv = 1, .seq_q = 9, .seq_kv = 9, .dim_qk = 64}, nothing));
}

template <class Call>
fh_status status_of(Call call) {
  try {
    call();
  } catch (const fh::Error& error) {
    EXPECT_STREQ(error.what(), fh_last_error());
    return error.status();
  }
  return FH_OK;
}

TEST(api, a_plan_for_a_named_gpu_is_read_not_run) {
  KnownAnswer known;
  known.problem.dtype = fh::Dtype::bf16;
  const fh::Plan plan(known.problem, "h200 132sm");
  EXPECT_TRUE(plan.on_gpu());
  EXPECT_EQ(plan.workspace_bytes(), 8u);
  EXPECT_NE(plan.line().find(" -> fwd.bf16."), std::string::npos) << plan.line();
  EXPECT_EQ(status_of([&] { plan.run(known.tensors()); }), FH_NO_DEVICE);
  EXPECT_STREQ(fh_last_error(),
               "fh_plan_run: this plan was made for a GPU that was only named; it can be read, not run. Make one for "
               "\"hopper\" or \"cpu\".");
  EXPECT_TRUE(known.untouched());
}

TEST(api, the_workspace_of_a_call_is_that_of_its_plan) {
  const fh_problem p = c_problem();
  size_t bytes = 77;
  ASSERT_EQ(fh_workspace_bytes(&p, "cpu", &bytes), FH_OK) << fh_last_error();
  EXPECT_EQ(bytes, 0u);
  const fh_problem on_gpu = fh::to_c(fh::parse("fwd bf16 b1 hq1 hkv1 sq9 skv9 d64"));
  ASSERT_EQ(fh_workspace_bytes(&on_gpu, "h200", &bytes), FH_OK) << fh_last_error();
  EXPECT_EQ(bytes, 8u);
  EXPECT_EQ(fh_workspace_bytes(&p, "h200", &bytes), FH_UNSUPPORTED) << "fp32";
  EXPECT_EQ(std::string(fh_last_error()).rfind("fh_workspace_bytes: dtype is f32; ", 0), 0u) << fh_last_error();
}

// On any machine, also one with a GPU.
TEST(api, auto_takes_host_tensors_to_the_cpu) {
  for (const char* const target : {"auto", static_cast<const char*>(nullptr)}) {
    KnownAnswer known;
    const fh_tensors t = fh::to_c(known.tensors());
    const fh_problem p = c_problem();
    ASSERT_EQ(fh_attention(&p, target, &t, nullptr, 0, nullptr), FH_OK) << fh_last_error();
    EXPECT_LT(known.error(), rounding);
  }
  // One query and one key in bf16, which a GPU would compute.
  const fh_problem p = fh::to_c(fh::parse("fwd bf16 b1 hq1 hkv1 sq1 skv1 d64"));
  std::vector<uint16_t> qk(64, 0x3f80), v(64, 0x4040), o(64, 0);
  fh_tensors t = fh_tensors_init();
  t.q.data = t.k.data = qk.data(), t.v.data = v.data(), t.o.data = o.data();
  ASSERT_EQ(fh_attention(&p, nullptr, &t, nullptr, 0, nullptr), FH_OK) << fh_last_error();
  EXPECT_EQ(o, v);
}

TEST(api, refusals_name_the_call_and_touch_nothing) {
  KnownAnswer known;
  fh::Problem bad = known.problem;
  bad.heads_q = 8, bad.heads_kv = 3;
  EXPECT_EQ(status_of([&] { fh::Plan plan(bad); }), FH_INVALID_PROBLEM);
  EXPECT_STREQ(fh_last_error(),
               "fh_plan_create: heads_kv is 3 and heads_q is 8; heads_kv must divide heads_q. Use 1, 2, 4 or 8.");

  fh::Tensors tensors = known.tensors();
  tensors.o.stride_seq = 3;
  EXPECT_EQ(status_of([&] { fh::attention(known.problem, tensors, "cpu"); }), FH_INVALID_TENSOR);
  EXPECT_EQ(std::string(fh_last_error()).rfind("fh_attention: o.stride_seq is 3, but 8 ", 0), 0u) << fh_last_error();
  EXPECT_TRUE(known.untouched());
}

TEST(api, bad_lengths_are_refused_on_the_cpu) {
  KnownAnswer known;
  known.problem.varlen = true, known.problem.total_q = known.problem.total_kv = 5;
  const int32_t cu[] = {0, 6};
  fh::Tensors tensors = known.tensors();
  tensors.cu_seqlens_q = tensors.cu_seqlens_kv = cu;
  EXPECT_EQ(status_of([&] { fh::attention(known.problem, tensors, "cpu"); }), FH_INVALID_TENSOR);
  EXPECT_STREQ(fh_last_error(),
               "fh_attention: cu_seqlens_q[1] is 6 and total_q is 5; no sequence reaches past the "
               "total. Give all rows, or end earlier.");
  EXPECT_TRUE(known.untouched());
}

TEST(api, missing_arguments_are_refused) {
  KnownAnswer known;
  const fh_problem p = c_problem();
  const fh_tensors t = fh::to_c(known.tensors());
  fh_plan *plan = nullptr, *none = reinterpret_cast<fh_plan*>(16);
  ASSERT_EQ(fh_plan_create(&p, "cpu", &plan), FH_OK);
  fh_problem parsed = fh_problem_init();
  const auto refused = [](fh_status status, const std::string& call, const std::string& name, bool result = false) {
    const std::string said =
        call + ": " + name + " must " + (result ? "say where the result goes" : "point to your " + name);
    EXPECT_TRUE(status != FH_OK && std::string(fh_last_error()).rfind(said + ", but is NULL.", 0) == 0) << said;
  };
  refused(fh_plan_create(nullptr, nullptr, &none), "fh_plan_create", "problem");
  refused(fh_plan_create(&p, nullptr, nullptr), "fh_plan_create", "plan", true);
  refused(fh_plan_run(nullptr, &t, nullptr, 0, nullptr), "fh_plan_run", "plan");
  refused(fh_plan_run(plan, nullptr, nullptr, 0, nullptr), "fh_plan_run", "tensors");
  refused(fh_attention(nullptr, nullptr, &t, nullptr, 0, nullptr), "fh_attention", "problem");
  refused(fh_attention(&p, nullptr, nullptr, nullptr, 0, nullptr), "fh_attention", "tensors");
  size_t bytes = 7;
  refused(fh_workspace_bytes(nullptr, nullptr, &bytes), "fh_workspace_bytes", "problem");
  EXPECT_TRUE(none == nullptr && bytes == 0) << "a common exit destroys what was not made";
  refused(fh_workspace_bytes(&p, nullptr, nullptr), "fh_workspace_bytes", "bytes", true);
  refused(fh_problem_parse(nullptr, &parsed), "fh_problem_parse", "line");
  refused(fh_problem_parse("fwd", nullptr), "fh_problem_parse", "problem");
  refused(fh_problem_print(nullptr, nullptr, 0, nullptr), "fh_problem_print", "problem");
  refused(fh_problem_print(&p, nullptr, 10, nullptr), "fh_problem_print", "line", true);
  EXPECT_EQ(std::string(fh_explain(nullptr, nullptr)).rfind("problem must point to your problem", 0), 0u);
  EXPECT_STREQ(fh_plan_line(nullptr), "");
  EXPECT_EQ(fh_plan_workspace_bytes(nullptr), 0u);
  EXPECT_EQ(fh_plan_on_gpu(nullptr), 0);
  fh_plan_destroy(nullptr), fh_plan_destroy(plan);
}

struct NewerTensors {
  fh_tensors known;
  void* later;
};

TEST(api, tensors_of_older_and_newer_headers) {
  KnownAnswer known;
  const fh_problem p = c_problem();
  NewerTensors newer{fh::to_c(known.tensors()), nullptr};
  newer.known.size = sizeof newer;
  EXPECT_EQ(fh_attention(&p, "cpu", &newer.known, nullptr, 0, nullptr), FH_OK) << fh_last_error();
  newer.later = &newer;
  EXPECT_EQ(fh_attention(&p, "cpu", &newer.known, nullptr, 0, nullptr), FH_INVALID_TENSOR);

  KnownAnswer fresh;
  fh_tensors older = fh::to_c(fresh.tensors());
  older.size = offsetof(fh_tensors, cu_seqlens_q);
  older.sink = fresh.q.data();  // beyond its size: not there
  EXPECT_EQ(fh_attention(&p, "cpu", &older, nullptr, 0, nullptr), FH_OK) << fh_last_error();
  EXPECT_LT(fresh.error(), rounding);
}

TEST(api, problems_of_older_headers_are_cached_too) {
  fh_problem p = c_problem();
  p.size = offsetof(fh_problem, window_left);
  p.window_left = 0;  // beyond its size
  for (int again = 0; again < 2; ++again) {
    KnownAnswer known;
    const fh_tensors t = fh::to_c(known.tensors());
    ASSERT_EQ(fh_attention(&p, "cpu", &t, nullptr, 0, nullptr), FH_OK) << fh_last_error();
    EXPECT_LT(known.error(), rounding);
  }
}

TEST(api, a_forgotten_total_is_told) {
  fh_problem p = fh::to_c(fh::parse("fwd f32 b2 hq1 hkv1 sq10 skv10 d8 varlen tq20 tkv20"));
  p.total_q = 0;
  KnownAnswer known(20);
  fh_tensors t = fh::to_c(known.tensors());
  const int32_t ends[] = {0, 10, 20};
  t.lse = nullptr, t.cu_seqlens_q = t.cu_seqlens_kv = const_cast<int32_t*>(ends);
  EXPECT_EQ(fh_attention(&p, "cpu", &t, nullptr, 0, nullptr), FH_INVALID_TENSOR);
  EXPECT_NE(std::string(fh_last_error()).find("cu_seqlens_q[1] is 10 and total_q is 0"), std::string::npos)
      << fh_last_error();
}

TEST(api, lines_are_parsed_and_printed) {
  const std::string line = "fwd f16 b1 hq2 hkv1 sq5 skv5 d64 window3,0 sink";
  EXPECT_EQ(fh::print(fh::parse(line)), line);
  EXPECT_EQ(status_of([] { fh::parse("fwd f16 nonsense"); }), FH_INVALID_PROBLEM);

  const fh_problem p = fh::to_c(fh::parse(line));
  char few[8] = "xxxxxxx";
  size_t length = 0;
  EXPECT_EQ(fh_problem_print(&p, few, sizeof few, &length), FH_OK);
  EXPECT_STREQ(few, "fwd f16");
  EXPECT_EQ(length, line.size());
}

TEST(api, parse_writes_no_more_than_the_struct_can_hold) {
  fh_problem p = fh_problem_init();
  p.size = offsetof(fh_problem, max_sms);
  p.max_sms = 77;  // beyond its size: not ours
  EXPECT_EQ(fh_problem_parse("fwd f16 b1 hq2 hkv1 sq5 skv5 d64 sms4", &p), FH_INVALID_PROBLEM);
  EXPECT_EQ(p.heads_q, 0);
  EXPECT_EQ(fh_problem_parse("fwd f16 b1 hq2 hkv1 sq5 skv5 d64", &p), FH_OK) << fh_last_error();
  EXPECT_EQ(p.heads_q, 2);
  EXPECT_EQ(p.size, offsetof(fh_problem, max_sms));
  EXPECT_EQ(p.max_sms, 77);
  p.size = 0;
  EXPECT_EQ(fh_problem_parse("fwd f16 b1 hq2 hkv1 sq5 skv5 d64", &p), FH_INVALID_PROBLEM);
}

TEST(api, errors_belong_to_their_thread) {
  EXPECT_NE(fh_plan_create(nullptr, nullptr, nullptr), FH_OK);
  const std::string mine = fh_last_error();
  std::thread([] {
    EXPECT_STREQ(fh_last_error(), "");
    fh_problem_parse("x", nullptr);
    EXPECT_NE(std::string(fh_last_error()), "");
  }).join();
  EXPECT_EQ(fh_last_error(), mine);
  const fh_problem p = c_problem();
  EXPECT_EQ(fh_problem_print(&p, nullptr, 0, nullptr), FH_OK);
  EXPECT_EQ(fh_last_error(), mine) << "a call that succeeds leaves it";
}

TEST(api, many_threads_share_the_cache) {
  std::vector<std::thread> threads;
  std::vector<double> errors(8, INFINITY);
  for (size_t i = 0; i < errors.size(); ++i)
    threads.emplace_back([&errors, i] {
      double worst = 0;
      for (int64_t round = 0; round < 40; ++round) {
        KnownAnswer known(1 + (static_cast<int64_t>(i) + round) % 5);
        fh::attention(known.problem, known.tensors(), "cpu");
        worst = std::max(worst, known.error());
      }
      errors[i] = worst;
    });
  for (std::thread& thread : threads) thread.join();
  for (double error : errors) EXPECT_LT(error, rounding);
}

struct Lines {
  std::mutex mutex;
  std::vector<std::string> all;
};

void keep(const char* line, void* user) {
  auto& lines = *static_cast<Lines*>(user);
  const std::lock_guard lock(lines.mutex);
  lines.all.push_back(line);
}

TEST(api, the_log_tells_what_was_planned) {
  Lines lines;
  fh_set_log(keep, &lines);
  KnownAnswer known;
  const std::string auto_line = fh::Plan(known.problem).line();  // f32, so the CPU, with the reason
  fh_set_log(nullptr, nullptr);
  fh::Plan(known.problem, "cpu");
  ASSERT_EQ(lines.all.size(), 2u);
  EXPECT_EQ(lines.all[0], "plan: " + auto_line);
  EXPECT_EQ(lines.all[1].rfind("auto: the CPU computes fwd f32 b1 hq2 hkv1 sq5 skv5 d8 causal, since: ", 0), 0u)
      << lines.all[1];
}

void throws(const char*, void*) { throw 1; }
void plans(const char*, void* count) {
  ++*static_cast<int*>(count);
  fh::Plan(KnownAnswer().problem, "cpu");
  fh_set_log(nullptr, nullptr);
}

TEST(api, a_log_function_may_throw_or_call_the_library) {
  fh_set_log(throws, nullptr);
  EXPECT_NO_THROW(fh::Plan(KnownAnswer().problem, "cpu"));
  int count = 0;
  fh_set_log(plans, &count);
  fh::Plan(KnownAnswer().problem, "cpu");
  fh::Plan(KnownAnswer().problem, "cpu");
  EXPECT_EQ(count, 1) << "what it does itself is not logged, and it took itself off";
}

TEST(api, explain_gives_reasons) {
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
  };
  const fh::Problem p = fh::parse("fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal");
  const std::string named = fh::explain(p, "h200 132sm");
  for (const char* part : {"fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal", "h200 132sm", "fwd.bf16.d128.",
                           "tiles", "registers", "shared", "grid", "workspace"})
    has(named, part);
  has(fh::explain(KnownAnswer().problem, "h200 132sm"), "f32");  // why the Hopper kernels refuse
  has(fh::explain(KnownAnswer().problem), "runs on      cpu");
  has(fh::explain({.heads_q = 1, .heads_kv = 1, .dim_qk = 12}), "dim_qk is 12 and dim_v is 12; ");
  has(fh::explain(p, "nonsense"), "target is \"nonsense\"");
}

TEST(api, names) {
  EXPECT_STREQ(fh_status_name(FH_OK), "FH_OK");
  EXPECT_STREQ(fh_status_name(FH_INTERNAL), "FH_INTERNAL");
  const int parts[] = {FH_VERSION_MAJOR, FH_VERSION_MINOR, FH_VERSION_PATCH};
  EXPECT_EQ(fh_version(), std::to_string(parts[0]) + "." + std::to_string(parts[1]) + "." + std::to_string(parts[2]));
  EXPECT_EQ(FH_VERSION, FH_VERSION_MAJOR * 10000 + FH_VERSION_MINOR * 100 + FH_VERSION_PATCH);
}

}  // namespace
