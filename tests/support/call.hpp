// SPDX-License-Identifier: Apache-2.0
// tests: a call of the C interface with everything it needs, and processes to make it in.
#pragma once
#include <froghopper/froghopper.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace froghopper::test {

inline constexpr float untouched = 12345.0f;

// A problem with dense tensors of its own, whose numbers depend on nothing but the problem.
struct Call {
  explicit Call(const char* line) : problem(fh_problem_init()), tensors(fh_tensors_init()) {
    EXPECT_EQ(fh_problem_parse(line, &problem), FH_OK) << fh_last_error();
    const int64_t rows_q = problem.batch * problem.seq_q * problem.heads_q;
    const int64_t rows_kv = problem.batch * problem.seq_kv * problem.heads_kv;
    q = numbers(rows_q * problem.dim_qk, 1);
    k = numbers(rows_kv * problem.dim_qk, 2);
    v = numbers(rows_kv * problem.dim_v, 3);
    o.assign(rows_q * problem.dim_v, untouched);
    lse.assign(rows_q, untouched);
    tensors.q = dense(q, problem.seq_q, problem.heads_q, problem.dim_qk);
    tensors.k = dense(k, problem.seq_kv, problem.heads_kv, problem.dim_qk);
    tensors.v = dense(v, problem.seq_kv, problem.heads_kv, problem.dim_v);
    tensors.o = dense(o, problem.seq_q, problem.heads_q, problem.dim_v);
    tensors.lse = lse.data();
  }
  Call(const Call&) = delete;

  static std::vector<float> numbers(int64_t count, uint32_t seed) {
    std::vector<float> all(count);
    for (float& x : all) x = static_cast<float>((seed = seed * 1664525 + 1013904223) >> 16) / 32768 - 1;
    return all;
  }
  static fh_tensor dense(std::vector<float>& data, int64_t seq, int64_t heads, int64_t dim) {
    return {data.data(), seq * heads * dim, heads * dim, dim};
  }

  fh_status run(const char* target = "cpu") { return fh_attention(&problem, target, &tensors, nullptr, 0, nullptr); }
  bool written() const {
    for (float x : o)
      if (x != untouched) return true;
    for (float x : lse)
      if (x != untouched) return true;
    return false;
  }
  void clear() {
    o.assign(o.size(), untouched);
    lse.assign(lse.size(), untouched);
  }

  fh_problem problem;
  fh_tensors tensors;
  std::vector<float> q, k, v, o, lse;
};

// What a child process ends with: 0 where `work` returns true. Killed after a while where it hangs.
inline int status_of_child(const std::function<int()>& work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(work());
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

inline std::string words(int status) {
  if (WIFSIGNALED(status)) return std::string("ended by signal ") + strsignal(WTERMSIG(status));
  return "returned " + std::to_string(WEXITSTATUS(status));
}

}  // namespace froghopper::test
