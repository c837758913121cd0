/* SPDX-License-Identifier: Apache-2.0
 *
 * cp.h - context parallelism: exact attention over a sequence whose rows are spread over several ranks (processes,
 * threads or GPUs), none of which holds them all. The library is libfroghopper-cp; froghopper.h has the attention.
 *
 *   describe   fh_problem whole = fh_problem_init(); ...                the attention over all rows of all ranks
 *              fh_cp_problem p = fh_cp_problem_init(); p.whole = &whole; p.ranks = 4; p.rank = 1;
 *   plan       fh_cp_plan_create(&p, "cpu", &plan);                     scheme, steps, workspace; moves nothing
 *   shard      fh_cp_plan_rows(plan, p.rank, ranges, 2, &count);        which rows of the sequence this rank holds
 *   run        fh_cp_plan_run(plan, &transport, NULL, &tensors, workspace, bytes, stream);      on all ranks
 *   forget     fh_cp_plan_destroy(plan);
 *
 * Conventions, beside those of froghopper.h
 *   (1) Ranks are numbered from 0. Every rank makes its plan of the same description, with its own rank, and runs it
 *       as often as the others, in the same order. A plan is of one op, FH_FORWARD or FH_BACKWARD, as whole->op says.
 *   (2) Rows of q and of k and v are spread alike, so seq_q and seq_kv are equal. Lengths need not divide by ranks:
 *       shards may be of different length, and empty. There are no padding rows.
 *   (3) A shard is dense: q [batch, rows, heads_q, dim_qk], o [batch, rows, heads_q, dim_v] and so on, its rows in the
 *       order of fh_cp_plan_rows, which is that of the sequence; lse [batch, heads_q, rows], f32.
 *   (4) Sums over keys of several ranks are made in f32 and in a fixed order: two runs give equal bits where the
 *       attention itself does (whole->deterministic says that of gradients). o and gradients are rounded once.
 *   (5) Calls that can fail return fh_status; fh_cp_last_error() explains the last failure on this thread. What a call
 *       that failed was to write is undefined, and the transport was cancelled if the failure came after data moved.
 *       FH_LAUNCH_FAILED: a callback failed, and the text is the callback's. FH_INVALID_PROBLEM of fh_cp_plan_run:
 *       ranks disagree about what is computed; then every rank gets it, and nothing has moved. A rank that gets no
 *       plan cannot tell the others: where they run already, its caller calls `cancel` of the transport.
 *   (6) The library never prints, never exits, never allocates device memory, never synchronises a stream. It waits
 *       only inside the caller's callbacks.
 *   (7) A plan is immutable. Any number of threads may run it at once, each with a workspace and a transport.
 */
#ifndef FROGHOPPER_CP_H_
#define FROGHOPPER_CP_H_

#include <froghopper/froghopper.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which bytes move. */
typedef enum fh_cp_scheme {
  /* The one that the model of time says is fastest and that workspace_limit allows. */
  FH_CP_AUTO = 0,
  /* k and v of rank r - t arrive in step t, while those of step t - 1 are attended to: o and lse are merged in f32. The
   * workspace holds two blocks. */
  FH_CP_RING = 1,
  /* What k and v this rank's rows see is fetched first, then attended to in one piece. The workspace holds all of it.
   * Windows need only the keys before the shard. */
  FH_CP_ALL_GATHER = 2,
  /* Each rank gets all rows of heads_q / ranks heads (Ulysses): heads_q must divide by ranks, and heads_kv must divide
   * by ranks or ranks by heads_kv. */
  FH_CP_ALL_TO_ALL = 3
} fh_cp_scheme;

/* Which rows a rank holds. */
typedef enum fh_cp_layout {
  /* Zigzag where the mask is causal without a window, else contiguous. */
  FH_CP_LAYOUT_AUTO = 0,
  /* Rank r: rows from floor(r seq / ranks) to floor((r + 1) seq / ranks). */
  FH_CP_CONTIGUOUS = 1,
  /* Of 2 ranks chunks, cut likewise, rank r has chunks r and 2 ranks - 1 - r, so that all ranks have as much to do
   * under a causal mask. */
  FH_CP_ZIGZAG = 2
} fh_cp_layout;

/* What is computed, over how many ranks, and on which of them. Start from fh_cp_problem_init(). */
typedef struct fh_cp_problem {
  size_t size; /* sizeof(fh_cp_problem) */
  /* The attention over all ranks' rows, forward or backward. Read while a plan is made. Of its options batch, GQA,
   * causal, windows, scale, softcap, sink, alibi and deterministic go; the others are refused by name. */
  const fh_problem* whole;
  int64_t ranks;       /* 1 to 4096 */
  int64_t rank;        /* this one, from 0 */
  fh_cp_scheme scheme; /* which bytes move */
  fh_cp_layout layout; /* which rows a rank holds */
  fh_dtype dtype_out;  /* of o, or of the gradients: FH_USUAL that of whole, or FH_F32: not rounded */
  /* Ranks compare what they are about to compute, see fh_cp_tensors.call, in every call (0 or 1), in every n-th (n), or
   * never (-1). */
  int32_t check_interval;
  int64_t ranks_per_host;   /* of the model of time: ranks that NVLink joins; 0: all */
  uint64_t workspace_limit; /* bytes, also for what attention itself needs: FH_CP_AUTO passes over schemes of which a
                             * rank needs more; 0: no limit */
} fh_cp_problem;

/* One rank, the rest 0. */
static inline fh_cp_problem fh_cp_problem_init(void) {
  fh_cp_problem p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  p.ranks = 1;
  return p;
}

/* What one rank does, and what it needs for that. The functions that read a plan return 0, or "", for
 * NULL. */
typedef struct fh_cp_plan fh_cp_plan;

/* Rows [begin, end) of the whole sequence. */
typedef struct fh_cp_range {
  int64_t begin, end; /* the first row, and the one after the last */
} fh_cp_range;

/* target: as for fh_plan_create, "cpu", "hopper", or a GPU that need not be here: such a plan can be read, not run. */
FH_API fh_status fh_cp_plan_create(const fh_cp_problem* problem, const char* target, fh_cp_plan** plan);
FH_API void fh_cp_plan_destroy(fh_cp_plan* plan); /* NULL: nothing happens */

/* The rows that a rank holds, in order: at most two ranges, of which none is empty and no two touch. Writes at most
 * `capacity` of them, and to *count how many there are. */
FH_API fh_status fh_cp_plan_rows(const fh_cp_plan* plan, int64_t rank, fh_cp_range* ranges, int64_t capacity,
                                 int64_t* count);
FH_API uint64_t fh_cp_plan_workspace_bytes(const fh_cp_plan* plan); /* what fh_cp_plan_run needs on this rank */
FH_API int fh_cp_plan_on_gpu(const fh_cp_plan* plan);          /* nonzero: tensors and workspace are GPU memory */
FH_API fh_cp_scheme fh_cp_plan_scheme(const fh_cp_plan* plan); /* never FH_CP_AUTO */
FH_API fh_cp_layout fh_cp_plan_layout(const fh_cp_plan* plan); /* never FH_CP_LAYOUT_AUTO */
FH_API uint64_t fh_cp_plan_bytes_in(const fh_cp_plan* plan);   /* that this rank receives in a run, without digests */
FH_API uint64_t fh_cp_plan_bytes_out(const fh_cp_plan* plan);  /* that it sends */
/* Seconds that a run takes on the slowest rank, by the model of time: docs/15-context-parallel-c.md. */
FH_API double fh_cp_plan_seconds(const fh_cp_plan* plan);
/* The plan as lines of text: the scheme and why, then this rank's steps in order: what moves, from whom, which rows
 * attend to which keys, bytes, FLOP, predicted microseconds. Lives as long as the plan. */
FH_API const char* fh_cp_plan_text(const fh_cp_plan* plan);
/* The same of a problem, or why it cannot be computed. Lives until this thread's next call of it. */
FH_API const char* fh_cp_explain(const fh_cp_problem* problem, const char* target);

/* Bytes that go to a peer or come from one. */
typedef struct fh_cp_transfer {
  int64_t peer;   /* a rank, never the own one */
  void* data;     /* host memory for a plan on the CPU, GPU memory for one on a GPU. Sends: read */
  uint64_t bytes; /* never 0 */
} fh_cp_transfer;

/* How bytes move: functions of yours, or fh_cp_nccl_transport. Each returns 0, or another number for a failure, which
 * makes fh_cp_plan_run fail. Two runs never use a transport at once. The functions are called on the thread that calls
 * fh_cp_plan_run. */
typedef struct fh_cp_transport {
  size_t size;         /* sizeof(fh_cp_transport) */
  void* context;       /* handed to each function */
  int64_t ranks, rank; /* as in the plan, else the run is refused, and by `agree` the others are told */
  /* Starts one group of transfers and may return before they are done. All ranks make the same number of calls in the
   * same order, also where a rank has nothing to move (counts of 0). The i-th send to a peer is received by the i-th
   * receive from this rank in that peer's call of the same number, and is as long. stream: that of the run: what is
   * sent is there once the work that is now in it is done, and what is received into may be overwritten then.
   * *ticket: whatever tells `wait` which group. The arrays live until the function returns. */
  int (*exchange)(void* context, const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs,
                  int64_t recv_count, void* stream, void** ticket);
  /* Called once for every exchange that returned 0, in their order. On the CPU it returns when all is received and
   * what was sent may be overwritten; on a GPU it makes `stream` wait for that, and may return at once. */
  int (*wait)(void* context, void* ticket, void* stream);
  /* May be NULL. After a failure: gives up what is in flight, so that memory is no longer touched and peers fail too.
   * No wait follows: what tickets stand for is the transport's to release. */
  void (*cancel)(void* context);
  /* May be NULL. What the last failure was, in words; copied at once. */
  const char* (*error)(void* context);
  /* May be NULL: then digests go through `exchange` on the CPU, and are not compared on a GPU. Writes each rank's
   * number to digests[0 .. ranks - 1], and returns when they are there. */
  int (*agree)(void* context, uint64_t digest, uint64_t* digests);
} fh_cp_transport;

/* All NULL. */
static inline fh_cp_transport fh_cp_transport_init(void) {
  fh_cp_transport t;
  memset(&t, 0, sizeof t);
  t.size = sizeof t;
  return t;
}

/* What is done to memory beside attention. NULL where a plan runs on the CPU: the library does it. On a GPU the caller
 * gives these; all enqueue on `stream`, which is that of the run, and return 0 or another number for a failure.
 * fh_cp_cuda_memory has fill and copy. */
typedef struct fh_cp_memory {
  size_t size;   /* sizeof(fh_cp_memory) */
  void* context; /* handed to each function */
  /* words 32-bit words get the value */
  int (*fill)(void* context, void* data, uint32_t value, uint64_t words, void* stream);
  /* rows of `bytes` bytes each, which begin to_pitch and from_pitch bytes after each other; nothing overlaps */
  int (*copy)(void* context, void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch, uint64_t bytes,
              uint64_t rows, void* stream);
  /* into[i] += from[i]. Needed by gradients where several ranks have a part of one: ring, all-gather, and all-to-all
   * with fewer key heads than ranks. */
  int (*add)(void* context, float* into, const float* from, uint64_t count, void* stream);
  /* to[i] = from[i], rounded to the nearest even f16 or bf16. Needed where dtype_out is one of these and sums are in
   * f32: o of the ring, and gradients. */
  int (*convert)(void* context, void* to, fh_dtype dtype, const float* from, uint64_t count, void* stream);
  /* to[r, i] = from[r] for i below `columns`. Needed by sinks where o is merged in f32. */
  int (*spread)(void* context, float* to, const float* from, uint64_t rows, uint64_t columns, void* stream);
} fh_cp_memory;

/* All NULL. */
static inline fh_cp_memory fh_cp_memory_init(void) {
  fh_cp_memory m;
  memset(&m, 0, sizeof m);
  m.size = sizeof m;
  return m;
}

/* This rank's shards, dense, as (3) has them. Addresses are multiples of a number's size; on a GPU those of q, k, v, o
 * and their gradients of 16 bytes. What is written shares no byte with another tensor or with the workspace. */
typedef struct fh_cp_tensors {
  size_t size; /* sizeof(fh_cp_tensors) */
  /* Counts the calls on these ranks. Ranks compare a digest of it with that of the problem and the plan before data
   * moves, so a rank that is a call behind is noticed. 0 everywhere is fine: then calls are not told apart. */
  uint64_t call;
  const void *q, *k, *v;     /* in whole->dtype. Read. NULL where the shard is empty. */
  void* o;                   /* forward: written, in dtype_out. Backward: read, in whole->dtype. */
  float* lse;                /* [batch, heads_q, rows]. Forward: written, may be NULL. Backward: read. */
  const float* sink;         /* sink: [heads_q], the same on all ranks; else NULL */
  const float* alibi_slopes; /* alibi: [heads_q], the same on all ranks; else NULL */
  /* Backward only, else NULL. */
  const void* grad_o;    /* in whole->dtype. Read. */
  const float* grad_lse; /* as lse. Read; NULL on all ranks: lse has no gradient. Else no rank gives NULL: of a
                                     shard without rows any other address, which is not read */
  void *grad_q, *grad_k, *grad_v; /* in dtype_out. Written. */
  float* grad_sink;               /* sink: [heads_q]. Written: this rank's part; the sum over all ranks is the
                                       gradient, as of every parameter that is the same on all of them. */
} fh_cp_tensors;

/* All NULL. */
static inline fh_cp_tensors fh_cp_tensors_init(void) {
  fh_cp_tensors t;
  memset(&t, 0, sizeof t);
  t.size = sizeof t;
  return t;
}

/* Runs this rank's part; the other ranks do the same at the same time. memory: NULL on the CPU. workspace: 256-byte
 * aligned, any content, of the memory that the tensors are in; may be NULL where the plan needs 0 bytes. It may be
 * used again when the call has returned, on a GPU by work that comes after it in the stream. With one rank nothing
 * moves, and transport may be NULL. */
FH_API fh_status fh_cp_plan_run(const fh_cp_plan* plan, const fh_cp_transport* transport, const fh_cp_memory* memory,
                                const fh_cp_tensors* tensors, void* workspace, uint64_t workspace_bytes,
                                void* stream);

/* A transport over NCCL, which is found at run time (libnccl.so.2, or the file that library names).
 * comm: an ncclComm_t, which the caller made and destroys, but not after a run that failed by the transport: `cancel`
 * aborts the communicator, and NCCL frees it then.
 * comm_stream: a stream of the caller's on which transfers run beside the attention, never that of the run; NULL: they
 * run in the stream of the run, one after the other with it. `agree` waits on it.
 * timeout_seconds: for how long the host waits in `agree` for other ranks, and in `exchange` for a communicator that
 * does not block; 0: 600.
 * scratch: 256-byte aligned GPU memory of 8 (ranks + 1) bytes, which digests go through; NULL: they are not compared.
 * Not thread safe. Destroy it after the last run is done. */
FH_API fh_status fh_cp_nccl_transport(void* comm, const char* library, void* comm_stream, double timeout_seconds,
                                      void* scratch, fh_cp_transport* transport);
FH_API void fh_cp_nccl_transport_destroy(fh_cp_transport* transport); /* of fh_cp_nccl_transport; NULL: nothing */

/* fill and copy by the CUDA driver, which is found at run time. add, convert and spread stay NULL: they are kernels,
 * which the library does not bring. */
FH_API fh_status fh_cp_cuda_memory(fh_cp_memory* memory);

/* Of this thread; valid until its next failing call; "" before the first. */
FH_API const char* fh_cp_last_error(void);
FH_API const char* fh_cp_scheme_name(fh_cp_scheme scheme); /* "all_gather" */

#ifdef __cplusplus
}
#endif
#endif /* FROGHOPPER_CP_H_ */
