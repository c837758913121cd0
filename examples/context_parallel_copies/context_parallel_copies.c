/* SPDX-License-Identifier: Apache-2.0
 * Attention over processes of one host that have a Hopper GPU each, or share one. Every process maps the memory of the
 * others by CUDA IPC and copies into it, so that no kernel moves data (fh_cp_copy_transport). The processes are forks
 * of this one: handles, digests and outputs go through memory that they share. Where one ends early, the others cancel.
 *
 *   context_parallel_copies [RANKS]     2, 4 or 8 ranks; 2 without it
 *
 * Returns 0 where each scheme's output is that of the CPU backend, and 77 where there is no Hopper GPU. */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <froghopper/cp.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

enum { most_ranks = 8, rows = 1000, heads_q = 16, heads_kv = 8, dim = 128, schemes = 3 };
enum { row_q = heads_q * dim, row_kv = heads_kv * dim }; /* numbers of a row */
/* A rank's memory begins with its signals, 16 bytes for each rank, and the workspace comes after them. */
enum { signals_bytes = 256, skipped = 77, pause_us = 50 };
static const fh_cp_scheme scheme_of[schemes] = {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL};

static uint16_t q[rows * row_q], k[rows * row_kv], v[rows * row_kv], expected[rows * row_q]; /* bf16 */

static struct Shared {
  atomic_int came, gone, told; /* ranks that have come to a meeting; one has ended early; a reason is printed */
  cudaIpcMemHandle_t handles[most_ranks];
  uint64_t digests[most_ranks];
  uint16_t o[schemes][rows * row_q];
} * shared;
static int ranks = 2, rank; /* rank: of this process */

/* The first that fails says why. */
static void leave(int code, const char* what, const char* why) {
  if (!atomic_exchange(&shared->told, 1)) fprintf(stderr, "rank %d: %s: %s\n", rank, what, why);
  _exit(code);
}

static void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) leave(1, what, cudaGetErrorString(error));
}

static void check(fh_status status, const char* what) {
  if (status == FH_NO_DEVICE) leave(skipped, "there is no Hopper GPU here", fh_cp_last_error());
  if (status != FH_OK) leave(1, what, fh_cp_last_error());
}

static void pause_shortly(void) { thrd_sleep(&(struct timespec){.tv_nsec = 1000 * pause_us}, NULL); }

/* Returns 0 when all ranks have come, and 1 where one of them does not come any more. */
static int meet(void) {
  const int all = (atomic_fetch_add(&shared->came, 1) / ranks + 1) * ranks;
  while (atomic_load(&shared->came) < all) {
    if (atomic_load(&shared->gone)) return 1;
    pause_shortly();
  }
  return 0;
}

static void meet_or_leave(void) {
  if (meet()) leave(1, "another rank", "it has ended");
}

/* The transport's `agree`, which a transport of copies leaves to its caller: what each rank is about to compute. */
static int agree(void* context, uint64_t digest, uint64_t* digests) {
  (void)context;
  shared->digests[rank] = digest;
  if (meet()) return 1;
  memcpy(digests, shared->digests, (size_t)ranks * sizeof *digests);
  return meet(); /* nobody writes the next digest before all have read this one */
}

/* Between the whole sequence in host memory and this rank's rows, which are dense in GPU memory. up: to the GPU. */
static void copy_rows(const fh_cp_plan* plan, uint16_t* whole, uint16_t* part, int row, int up) {
  fh_cp_range ranges[2];
  int64_t count = 0;
  check(fh_cp_plan_rows(plan, rank, ranges, 2, &count), "rows");
  for (int64_t i = 0; i < count; ++i) {
    const size_t numbers = (size_t)(ranges[i].end - ranges[i].begin) * (size_t)row;
    uint16_t* const there = whole + ranges[i].begin * row;
    check_cuda(cudaMemcpy(up ? part : there, up ? there : part, 2 * numbers, cudaMemcpyDefault), "cudaMemcpy");
    part += numbers;
  }
}

/* Every rank's memory, at its address in this process: its signals and then its workspace. */
static void map_memory(void* own, void* mapped[]) {
  check_cuda(cudaIpcGetMemHandle(&shared->handles[rank], own), "cudaIpcGetMemHandle");
  meet_or_leave();
  for (int peer = 0; peer < ranks; ++peer) {
    mapped[peer] = own;
    if (peer == rank) continue;
    check_cuda(cudaIpcOpenMemHandle(&mapped[peer], shared->handles[peer], cudaIpcMemLazyEnablePeerAccess),
               "cudaIpcOpenMemHandle, to map the memory of another rank");
  }
}

/* The transport; all ranks have set their signals to 0 and call this. */
static fh_cp_transport connect_ranks(void* mapped[], cudaStream_t copies) {
  void* workspaces[most_ranks];
  uint64_t* signals[most_ranks];
  for (int peer = 0; peer < ranks; ++peer) {
    signals[peer] = mapped[peer];
    workspaces[peer] = (char*)mapped[peer] + signals_bytes;
  }
  fh_cp_peers peers = fh_cp_peers_init();
  peers.ranks = ranks, peers.rank = rank;
  peers.workspaces = workspaces, peers.signals = signals, peers.copy_stream = copies;
  fh_cp_transport transport = fh_cp_transport_init();
  check(fh_cp_copy_transport(&peers, &transport), "fh_cp_copy_transport");
  transport.agree = agree;
  return transport;
}

/* Waits for the stream. Where a rank has ended, its peers' streams would wait for ever: `cancel` ends that. */
static void finish(cudaStream_t stream, const fh_cp_transport* transport) {
  cudaError_t error;
  while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady) {
    if (atomic_load(&shared->gone)) {
      transport->cancel(transport->context);
      cudaStreamSynchronize(stream);
      leave(1, "another rank", "it has ended while data moved");
    }
    pause_shortly();
  }
  check_cuda(error, "the run");
}

static fh_problem whole_problem(void) {
  fh_problem whole = fh_problem_init(); /* forward, bf16, one sequence */
  whole.heads_q = heads_q, whole.heads_kv = heads_kv, whole.seq_q = whole.seq_kv = rows, whole.dim_qk = dim;
  whole.causal = 1;
  return whole;
}

static fh_cp_plan* plan_of(fh_cp_scheme scheme) {
  const fh_problem whole = whole_problem();
  fh_cp_problem problem = fh_cp_problem_init();
  problem.whole = &whole, problem.ranks = ranks, problem.rank = rank;
  problem.scheme = scheme, problem.transfers = FH_CP_PEER_COPIES;
  fh_cp_plan* plan = NULL;
  check(fh_cp_plan_create(&problem, "hopper", &plan), "fh_cp_plan_create");
  return plan;
}

/* One rank, in a process of its own. */
static int run_rank(void) {
  int gpus = 0;
  const cudaError_t found = cudaGetDeviceCount(&gpus);
  if (found != cudaSuccess) leave(skipped, "there is no Hopper GPU here", cudaGetErrorString(found));
  check_cuda(cudaSetDevice(rank % gpus), "cudaSetDevice");
  fh_cp_plan* plans[schemes];
  uint64_t bytes = 0; /* of the workspace, which serves one plan after the other */
  for (int i = 0; i < schemes; ++i) {
    plans[i] = plan_of(scheme_of[i]);
    if (bytes < fh_cp_plan_workspace_bytes(plans[i])) bytes = fh_cp_plan_workspace_bytes(plans[i]);
  }
  cudaStream_t stream, copies;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check_cuda(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  void *own, *gpu_q, *gpu_k, *gpu_v, *gpu_o;
  check_cuda(cudaMalloc(&own, signals_bytes + bytes), "cudaMalloc");
  check_cuda(cudaMalloc(&gpu_q, sizeof q), "cudaMalloc"), check_cuda(cudaMalloc(&gpu_k, sizeof k), "cudaMalloc");
  check_cuda(cudaMalloc(&gpu_v, sizeof v), "cudaMalloc"), check_cuda(cudaMalloc(&gpu_o, sizeof q), "cudaMalloc");
  copy_rows(plans[0], q, gpu_q, row_q, 1); /* all plans have the same rows on this rank */
  copy_rows(plans[0], k, gpu_k, row_kv, 1);
  copy_rows(plans[0], v, gpu_v, row_kv, 1);
  check_cuda(cudaMemset(own, 0, signals_bytes), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "signals"); /* 0 before any rank knows where they are */
  void* mapped[most_ranks];
  map_memory(own, mapped);
  fh_cp_transport transport = connect_ranks(mapped, copies);
  fh_cp_memory memory = fh_cp_memory_init();
  check(fh_cp_cuda_memory(&memory), "fh_cp_cuda_memory");
  fh_cp_tensors tensors = fh_cp_tensors_init();
  tensors.q = gpu_q, tensors.k = gpu_k, tensors.v = gpu_v, tensors.o = gpu_o;
  for (int i = 0; i < schemes; ++i) {
    tensors.call = (uint64_t)i;
    check(fh_cp_plan_run(plans[i], &transport, &memory, &tensors, (char*)own + signals_bytes, bytes, stream), "run");
    finish(stream, &transport);
    copy_rows(plans[i], shared->o[i], gpu_o, row_q, 0);
  }

  meet_or_leave(); /* all runs are done on all ranks, and nobody copies to a peer any more */
  fh_cp_copy_transport_destroy(&transport);
  for (int i = 0; i < schemes; ++i) fh_cp_plan_destroy(plans[i]);
  for (int peer = 0; peer < ranks; ++peer)
    if (peer != rank) check_cuda(cudaIpcCloseMemHandle(mapped[peer]), "cudaIpcCloseMemHandle");
  meet_or_leave(); /* memory is freed when nobody has it mapped; it is when this process ends */
  return 0;
}

/* Starts all ranks. Returns 0, or what the first of them returned that failed. */
static int run_ranks(void) {
  for (rank = 0; rank < ranks; ++rank) {
    const pid_t started = fork();
    if (started == 0) _exit(run_rank());
    if (started < 0) perror("fork"), atomic_store(&shared->gone, 1);
  }
  int first = 0, status;
  while (wait(&status) > 0) {
    if (status == 0) continue;
    atomic_store(&shared->gone, 1);
    if (first == 0) first = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
  return first != 0 ? first : atomic_load(&shared->gone);
}

/* bf16 is the upper half of a float; these values have so few digits that nothing is rounded. */
static void draw(uint16_t* x, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float value = (float)(rand() % 255 - 127) / 64;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    x[i] = (uint16_t)(bits >> 16);
  }
}

static double to_double(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  return memcpy(&value, &bits, sizeof value), value;
}

int main(int argc, char** argv) {
  if (argc > 1) ranks = atoi(argv[1]);
  if (argc > 2 || (ranks != 2 && ranks != 4 && ranks != most_ranks))
    return fprintf(stderr, "usage: context_parallel_copies [RANKS], which are 2, 4 or 8\n"), 2;
  const int zeros = open("/dev/zero", O_RDWR); /* so mapped, it is memory that the forks share */
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, zeros, 0);
  if (shared == MAP_FAILED) return perror("mmap"), 1;
  draw(q, rows * row_q), draw(k, rows * row_kv), draw(v, rows * row_kv);
  const int failed = run_ranks();
  if (failed) return failed;

  const fh_problem whole = whole_problem();
  fh_tensors alone = fh_tensors_init(); /* strides in numbers: of a sequence, a row, a head */
  alone.q = (fh_tensor){q, rows * row_q, row_q, dim}, alone.k = (fh_tensor){k, rows * row_kv, row_kv, dim};
  alone.v = (fh_tensor){v, rows * row_kv, row_kv, dim}, alone.o = (fh_tensor){expected, rows * row_q, row_q, dim};
  if (fh_attention(&whole, "cpu", &alone, NULL, 0, NULL) != FH_OK) return fprintf(stderr, "%s\n", fh_last_error()), 1;
  double worst = 0;
  for (int i = 0; i < schemes; ++i)
    for (size_t j = 0; j < rows * row_q; ++j) {
      const double error = fabs(to_double(shared->o[i][j]) - to_double(expected[j]));
      if (!(error <= worst)) worst = error; /* also where it is not a number */
    }
  printf("%d ranks, ring, all_gather and all_to_all: largest difference from the CPU %.1e\n", ranks, worst);
  return worst < 0.02 ? 0 : 1; /* bf16 rounds values up to 2 by at most 2^-8, on both sides */
}
