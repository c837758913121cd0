/* SPDX-License-Identifier: Apache-2.0
 * A decoding loop with a KV cache on a Hopper GPU: a prompt is attended at once, then one token a step. The step is
 * captured in a CUDA graph once and replayed, while the lengths of the sequences, which lie in GPU memory, grow. In the
 * end every output is compared with the CPU backend's. Returns 77 where there is no Hopper GPU. */
#include <cuda_runtime_api.h>
#include <froghopper/froghopper.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { batch = 2, capacity = 256, heads_q = 8, heads_kv = 2, dim = 128, prompt = 100, steps = 20 };
enum { row_q = heads_q * dim, row_kv = heads_kv * dim }; /* elements of a token */

static void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  exit(1);
}

static void check(fh_status status) {
  if (status == FH_OK) return;
  fprintf(stderr, "%s\n", fh_last_error());
  exit(status == FH_NO_DEVICE ? 77 : 1);
}

/* bf16 is the upper half of a float; these values have so few digits that nothing is rounded. */
static uint16_t random_bf16(void) {
  const float x = (float)(rand() % 255 - 127) / 64;
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static float to_float(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void* gpu_memory(size_t bytes) {
  void* memory = NULL;
  check_cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
  return memory;
}

/* Queries at the end of caches that have room for `capacity` tokens: seq_kv is the capacity, seqused_kv how many tokens
 * of it count. Causal masks are aligned to the last query and the last token that counts, as decoding wants it. */
static fh_problem queries_on_a_cache(int64_t queries) {
  fh_problem p = fh_problem_init(); /* forward, bf16 */
  p.batch = batch;
  p.heads_q = heads_q, p.heads_kv = heads_kv;
  p.seq_q = queries, p.seq_kv = capacity;
  p.dim_qk = dim;
  p.seqused = 1;
  p.causal = 1;
  return p;
}

static fh_tensors tensors_of(void* q, void* k, void* v, void* o, int64_t queries, const int32_t* lengths) {
  fh_tensors t = fh_tensors_init(); /* strides in elements: of a sequence, a token, a head */
  t.q = (fh_tensor){q, queries * row_q, row_q, dim};
  t.k = (fh_tensor){k, (int64_t)capacity * row_kv, row_kv, dim};
  t.v = (fh_tensor){v, (int64_t)capacity * row_kv, row_kv, dim};
  t.o = (fh_tensor){o, queries * row_q, row_q, dim};
  t.seqused_kv = lengths;
  return t;
}

static uint16_t q[batch][prompt + steps][row_q], k[batch][capacity][row_kv], v[batch][capacity][row_kv];
static uint16_t o[batch][prompt + steps][row_q];

/* The token at `position` of every sequence: its rows of k and v go to their place in the caches. */
static void append(uint16_t* gpu_k, uint16_t* gpu_v, int position, int tokens, cudaStream_t stream) {
  const size_t pitch = sizeof k[0], width = tokens * sizeof k[0][0];
  check_cuda(cudaMemcpy2DAsync(gpu_k + (size_t)position * row_kv, pitch, k[0][position], pitch, width, batch,
                               cudaMemcpyHostToDevice, stream),
             "append k");
  check_cuda(cudaMemcpy2DAsync(gpu_v + (size_t)position * row_kv, pitch, v[0][position], pitch, width, batch,
                               cudaMemcpyHostToDevice, stream),
             "append v");
}

/* The same with the CPU backend: all queries at once, as one prefill. */
static double largest_error(void) {
  static uint16_t expected[batch][prompt + steps][row_q];
  const int32_t lengths[batch] = {prompt + steps, prompt + steps};
  const fh_problem problem = queries_on_a_cache(prompt + steps);
  const fh_tensors tensors = tensors_of(q, k, v, expected, prompt + steps, lengths);
  check(fh_attention(&problem, "cpu", &tensors, NULL, 0, NULL));
  double worst = 0;
  for (size_t i = 0; i < sizeof o / sizeof(uint16_t); ++i) {
    const double error = fabs(to_float((&o[0][0][0])[i]) - to_float((&expected[0][0][0])[i]));
    if (!(error <= worst)) worst = error; /* also where it is not a number */
  }
  return worst;
}

int main(void) {
  for (size_t i = 0; i < sizeof q / sizeof(uint16_t); ++i) (&q[0][0][0])[i] = random_bf16();
  for (int b = 0; b < batch; ++b)
    for (int i = 0; i < (prompt + steps) * row_kv; ++i)
      (&k[b][0][0])[i] = random_bf16(), (&v[b][0][0])[i] = random_bf16();

  /* Once: the plans, and their memory. A plan is for one shape; runs that may overlap need a workspace each. */
  const fh_problem prefill = queries_on_a_cache(prompt), decode = queries_on_a_cache(1);
  fh_plan *prefill_plan = NULL, *decode_plan = NULL;
  check(fh_plan_create(&prefill, "hopper", &prefill_plan));
  check(fh_plan_create(&decode, "hopper", &decode_plan));
  printf("%s\n%s\n", fh_plan_line(prefill_plan), fh_plan_line(decode_plan));
  size_t bytes = fh_plan_workspace_bytes(prefill_plan);
  if (bytes < fh_plan_workspace_bytes(decode_plan)) bytes = fh_plan_workspace_bytes(decode_plan);
  void* workspace = gpu_memory(bytes + 1); /* NULL would do for 0 bytes */
  uint16_t *gpu_q = gpu_memory(sizeof q), *gpu_k = gpu_memory(sizeof k), *gpu_v = gpu_memory(sizeof v);
  uint16_t* gpu_o = gpu_memory(sizeof o);
  int32_t* gpu_lengths = gpu_memory(batch * sizeof(int32_t));
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");

  /* The prompt. */
  int32_t lengths[batch] = {prompt, prompt};
  append(gpu_k, gpu_v, 0, prompt, stream);
  check_cuda(cudaMemcpyAsync(gpu_lengths, lengths, sizeof lengths, cudaMemcpyHostToDevice, stream), "lengths");
  check_cuda(cudaMemcpy2DAsync(gpu_q, prompt * sizeof q[0][0], q, sizeof q[0], prompt * sizeof q[0][0], batch,
                               cudaMemcpyHostToDevice, stream),
             "queries");
  fh_tensors tensors = tensors_of(gpu_q, gpu_k, gpu_v, gpu_o, prompt, gpu_lengths);
  check(fh_plan_run(prefill_plan, &tensors, workspace, bytes, stream));
  check_cuda(cudaMemcpy2DAsync(o, sizeof o[0], gpu_o, prompt * sizeof o[0][0], prompt * sizeof o[0][0], batch,
                               cudaMemcpyDeviceToHost, stream),
             "outputs");

  /* One step, captured. The graph reads addresses and lengths again in each replay, so it serves every step. */
  cudaGraph_t graph;
  cudaGraphExec_t step;
  tensors = tensors_of(gpu_q, gpu_k, gpu_v, gpu_o, 1, gpu_lengths);
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  check(fh_plan_run(decode_plan, &tensors, workspace, bytes, stream));
  check_cuda(cudaStreamEndCapture(stream, &graph), "end of capture");
  check_cuda(cudaGraphInstantiateWithFlags(&step, graph, 0), "instantiate");

  for (int position = prompt; position < prompt + steps; ++position) {
    lengths[0] = lengths[1] = position + 1;
    append(gpu_k, gpu_v, position, 1, stream);
    check_cuda(cudaMemcpyAsync(gpu_lengths, lengths, sizeof lengths, cudaMemcpyHostToDevice, stream), "lengths");
    check_cuda(cudaMemcpy2DAsync(gpu_q, sizeof q[0][0], q[0][position], sizeof q[0], sizeof q[0][0], batch,
                                 cudaMemcpyHostToDevice, stream),
               "query");
    check_cuda(cudaGraphLaunch(step, stream), "launch");
    check_cuda(cudaMemcpy2DAsync(o[0][position], sizeof o[0], gpu_o, sizeof o[0][0], sizeof o[0][0], batch,
                                 cudaMemcpyDeviceToHost, stream),
               "output");
    check_cuda(cudaStreamSynchronize(stream), "step"); /* a model would compute its next token here */
  }

  /* Graphs need no plan. An engine also frees its memory, its graph and its stream; here the process ends. */
  fh_plan_destroy(prefill_plan);
  fh_plan_destroy(decode_plan);
  const double worst = largest_error();
  printf("%d tokens of %d sequences, largest difference from the CPU %.1e\n", prompt + steps, batch, worst);
  return worst < 0.02 ? 0 : 1; /* bf16 rounds values up to 2 by at most 2^-8, on both sides */
}
