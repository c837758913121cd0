/* SPDX-License-Identifier: Apache-2.0
 *
 * Claim: cp.h is C11 without a warning under the strictest flags, its structs have no gaps that a later field could
 * fill unseen, and a C program plans and runs with it: one rank gives what froghopper gives, bit by bit.
 */
#include <froghopper/cp.h>

#include <stddef.h>
#include <stdio.h>

_Static_assert(sizeof(fh_cp_range) == 16, "fh_cp_range");
_Static_assert(sizeof(fh_cp_transfer) == 32, "fh_cp_transfer");
_Static_assert(offsetof(fh_cp_problem, documents) == 68 && sizeof(fh_cp_problem) == 96, "fh_cp_problem");
_Static_assert(offsetof(fh_cp_transport, exchange) == 32 && sizeof(fh_cp_transport) == 80, "fh_cp_transport");
_Static_assert(offsetof(fh_cp_topology, forward_flops) == 104 && sizeof(fh_cp_topology) == 120, "fh_cp_topology");
_Static_assert(sizeof(fh_cp_memory) == 56, "fh_cp_memory");
_Static_assert(offsetof(fh_cp_tensors, tables) == 120 && sizeof(fh_cp_tensors) == 144, "fh_cp_tensors");

enum { ROWS = 20, HEADS = 2, DIM = 8, NUMBERS = ROWS * HEADS * DIM };

static int failed(const char* what) { return fprintf(stderr, "%s: %s\n", what, fh_cp_last_error()), 1; }

int main(void) {
  static float q[NUMBERS], k[NUMBERS], v[NUMBERS], o[NUMBERS], wanted[NUMBERS];
  for (int i = 0; i < NUMBERS; ++i)
    q[i] = (float)(i % 7) - 3, k[i] = (float)(i % 5) - 2, v[i] = (float)(i % 11) - 5, o[i] = wanted[i] = -1;

  fh_problem whole = fh_problem_init();
  whole.dtype = FH_F32, whole.batch = 1, whole.causal = 1;
  whole.heads_q = whole.heads_kv = HEADS, whole.seq_q = whole.seq_kv = ROWS, whole.dim_qk = DIM;
  fh_cp_problem problem = fh_cp_problem_init();
  problem.whole = &whole;
  fh_cp_plan* plan = NULL;
  if (fh_cp_plan_create(&problem, "cpu", &plan) != FH_OK) return failed("fh_cp_plan_create");

  fh_cp_range range = {-1, -1};
  int64_t count = 0;
  if (fh_cp_plan_rows(plan, 0, &range, 1, &count) != FH_OK || count != 1 || range.begin != 0 || range.end != ROWS)
    return failed("fh_cp_plan_rows");
  if (fh_cp_plan_rows(plan, 1, &range, 1, &count) == FH_OK) return failed("a rank too many");
  if (fh_cp_plan_workspace_bytes(plan) != 0 || fh_cp_plan_on_gpu(plan) || fh_cp_plan_bytes_in(plan) != 0)
    return failed("one rank moves nothing");

  fh_cp_tensors tensors = fh_cp_tensors_init();
  tensors.q = q, tensors.k = k, tensors.v = v, tensors.o = o;
  if (fh_cp_plan_run(plan, NULL, NULL, &tensors, NULL, 0, NULL) != FH_OK) return failed("fh_cp_plan_run");
  fh_cp_plan_destroy(plan);
  fh_cp_plan_destroy(NULL);

  fh_tensors alone = fh_tensors_init();
  const fh_tensor shape = {NULL, NUMBERS, HEADS * DIM, DIM};
  alone.q = alone.k = alone.v = alone.o = shape;
  alone.q.data = q, alone.k.data = k, alone.v.data = v, alone.o.data = wanted;
  if (fh_attention(&whole, "cpu", &alone, NULL, 0, NULL) != FH_OK) return failed(fh_last_error());
  return memcmp(o, wanted, sizeof o) == 0 ? 0 : failed("other numbers than froghopper's");
}
