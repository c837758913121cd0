/* SPDX-License-Identifier: Apache-2.0
 * Claim: froghopper.h is C11 without a warning under the strictest flags, its structs have the layout that programs
 * were compiled with, and a C program can plan, run and read errors. Returns 0 if so. */
#pragma GCC diagnostic error "-Wall"
#pragma GCC diagnostic error "-Wextra"
#pragma GCC diagnostic error "-Wpedantic"
#pragma GCC diagnostic error "-Wconversion"
#pragma GCC diagnostic error "-Wsign-conversion"
#pragma GCC diagnostic error "-Wshadow"
#pragma GCC diagnostic error "-Wstrict-prototypes"
#include <froghopper/froghopper.h>

#include <stdio.h>
#include <string.h>

/* Fields are only ever appended: these offsets never change. */
_Static_assert(offsetof(fh_problem, batch) == 16, "layout of fh_problem");
_Static_assert(offsetof(fh_problem, total_q) == 72, "layout of fh_problem");
_Static_assert(offsetof(fh_problem, window_left) == 104, "layout of fh_problem");
_Static_assert(offsetof(fh_problem, max_sms) == 136, "layout of fh_problem");
_Static_assert(offsetof(fh_problem, accumulate) == 144, "layout of fh_problem");
_Static_assert(offsetof(fh_problem, dtype_kv) == 152, "layout of fh_problem");
_Static_assert(sizeof(fh_problem) >= 176, "layout of fh_problem");
_Static_assert(sizeof(fh_tensor) == 32, "layout of fh_tensor");
_Static_assert(offsetof(fh_tensors, lse) == 136, "layout of fh_tensors");
_Static_assert(offsetof(fh_tensors, sink) == 176, "layout of fh_tensors");
_Static_assert(offsetof(fh_tensors, grad_lse) == 312, "layout of fh_tensors");
_Static_assert(offsetof(fh_tensors, scale_q) == 328, "layout of fh_tensors");
_Static_assert(offsetof(fh_tensors, o_sum) == offsetof(fh_tensors, lse_stride_batch) + 24, "layout of fh_tensors");
_Static_assert(offsetof(fh_tensors, o_sum) + 32 == sizeof(fh_tensors), "layout of fh_tensors");
_Static_assert(FH_E4M3 == 4 && FH_E5M2 == 5 && FH_USUAL == 0, "numbers of the types");
_Static_assert(FH_INTERNAL == 7 && FH_BACKWARD == 2 && FH_F32 == 3 && FH_TOP_LEFT == 1, "numbers of the enums");

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, fh_last_error());
  return 1;
}

int main(void) {
  float q[8] = {0}, k[8] = {0}, v[8] = {1, 2, 3, 4, 5, 6, 7, 8}, o[8] = {0};
  fh_problem problem = fh_problem_init();
  problem.dtype = FH_F32;
  problem.batch = problem.heads_q = problem.heads_kv = problem.seq_q = problem.seq_kv = 1;
  problem.dim_qk = 8;

  fh_tensors tensors = fh_tensors_init();
  tensors.q.data = q;
  tensors.k.data = k;
  tensors.v.data = v;
  tensors.o.data = o;

  fh_plan* plan = NULL;
  if (fh_plan_create(&problem, "cpu", &plan) != FH_OK) return failed("plan");
  const fh_status status = fh_plan_run(plan, &tensors, NULL, 0, NULL);
  fh_plan_destroy(plan);
  if (status != FH_OK) return failed("run");
  if (memcmp(o, v, sizeof o) != 0) return failed("one key: o is its v");

  problem.heads_kv = 0;
  if (fh_attention(&problem, "cpu", &tensors, NULL, 0, NULL) != FH_INVALID_PROBLEM) return failed("refusal");
  if (strncmp(fh_last_error(), "fh_attention: heads_kv is 0; ", 29) != 0) return failed("message");
  return 0;
}
