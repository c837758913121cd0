/* SPDX-License-Identifier: Apache-2.0
 * Causal attention with four query heads on two key heads, on the CPU: plan once, run, and compare with plain loops. */
#include <froghopper/froghopper.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { rows = 100, heads_q = 4, heads_kv = 2, dim = 64 };

static float q[rows][heads_q][dim], k[rows][heads_kv][dim], v[rows][heads_kv][dim], o[rows][heads_q][dim];

static void fill(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

/* One element of softmax(q k^T / 8) v, the way one would write it down. */
static double expected(int row, int head, int column) {
  const int head_kv = head / (heads_q / heads_kv);
  double sum = 0, weighted = 0;
  for (int key = 0; key <= row; ++key) {
    double score = 0;
    for (int d = 0; d < dim; ++d) score += (double)q[row][head][d] * k[key][head_kv][d];
    const double weight = exp(score / 8); /* 8 = sqrt(dim) */
    sum += weight;
    weighted += weight * v[key][head_kv][column];
  }
  return weighted / sum;
}

int main(void) {
  fill(&q[0][0][0], rows * heads_q * dim);
  fill(&k[0][0][0], rows * heads_kv * dim);
  fill(&v[0][0][0], rows * heads_kv * dim);

  fh_problem problem = fh_problem_init();
  problem.dtype = FH_F32;
  problem.batch = 1;
  problem.heads_q = heads_q;
  problem.heads_kv = heads_kv;
  problem.seq_q = problem.seq_kv = rows;
  problem.dim_qk = dim;
  problem.causal = 1;

  fh_tensors tensors = fh_tensors_init(); /* strides: batch (of 1, so any), row, head */
  tensors.q = (fh_tensor){q, 0, heads_q * dim, dim};
  tensors.k = (fh_tensor){k, 0, heads_kv * dim, dim};
  tensors.v = (fh_tensor){v, 0, heads_kv * dim, dim};
  tensors.o = (fh_tensor){o, 0, heads_q * dim, dim};

  fh_plan* plan = NULL;
  if (fh_plan_create(&problem, "cpu", &plan) != FH_OK || fh_plan_run(plan, &tensors, NULL, 0, NULL) != FH_OK) {
    fprintf(stderr, "%s\n", fh_last_error());
    fh_plan_destroy(plan);
    return 1;
  }
  printf("%s\n", fh_plan_line(plan));
  fh_plan_destroy(plan);

  double worst = 0;
  for (int row = 0; row < rows; ++row)
    for (int head = 0; head < heads_q; ++head)
      for (int column = 0; column < dim; ++column) {
        const double error = fabs(o[row][head][column] - expected(row, head, column));
        if (!(error <= worst)) worst = error; /* also where it is no number */
      }
  printf("largest error %.1e\n", worst);
  return worst < 1e-6 ? 0 : 1;
}
