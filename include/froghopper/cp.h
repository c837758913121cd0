/* SPDX-License-Identifier: Apache-2.0
 *
 * cp.h - context parallelism: exact attention over a sequence whose rows are distributed over several ranks (processes,
 * threads or GPUs). No rank holds all rows. The library is libfroghopper-cp; froghopper.h describes the attention.
 *
 *   describe   fh_problem whole = fh_problem_init(); ...                the attention over all rows of all ranks
 *              fh_cp_problem p = fh_cp_problem_init(); p.whole = &whole; p.ranks = 4; p.rank = 1;
 *   plan       fh_cp_plan_create(&p, "cpu", &plan);                     scheme, steps, workspace; moves nothing
 *   shard      fh_cp_plan_rows(plan, p.rank, ranges, 2, &count);        the rows of the sequence that this rank holds
 *   run        fh_cp_plan_run(plan, &transport, NULL, &tensors, workspace, bytes, stream);      on all ranks
 *   destroy    fh_cp_plan_destroy(plan);
 *
 * Conventions, in addition to those of froghopper.h
 *   (1) Ranks are numbered from 0. Every rank makes its plan from the same description, with its own rank number, and
 *       all ranks run their plans in the same order. whole->op is FH_FORWARD or FH_BACKWARD.
 *   (2) Rows of q, k and v are distributed in the same way, so seq_q and seq_kv are equal. Lengths need not be
 *       divisible by ranks: shards may differ in length, and may be empty. There are no padding rows. The rows may be
 *       several documents (packed sequences, varlen): fh_cp_problem.cu_seqlens.
 *   (3) A shard is dense: q [batch, rows, heads_q, dim_qk], o [batch, rows, heads_q, dim_v] and so on, and lse [batch,
 *       heads_q, rows] in f32. Its rows are in the order of the sequence.
 *   (4) Sums over keys of several ranks are computed in f32 and in a fixed order. Two runs are bitwise identical if
 *       the attention itself is; for gradients that needs whole->deterministic. o and gradients are rounded once.
 *   (5) Calls that can fail return fh_status, and fh_cp_last_error() explains the last failure on this thread. The
 *       outputs of a failed call are undefined. If it failed after data moved, the transport was cancelled.
 *       FH_LAUNCH_FAILED: a callback failed, and the text comes from it. FH_INVALID_PROBLEM of fh_cp_plan_run: ranks
 *       disagree about what is computed, or another rank refuses its arguments; nothing has moved. Do not call `cancel`
 *       then: other ranks may still read what this one has said.
 *       A rank that refuses its arguments tells the others in calls in which ranks compare, see check_interval. In
 *       other calls it cancels the transport. The others may have moved data by then; they get FH_LAUNCH_FAILED. It
 *       does so in every call if the transport has no `agree` and either has other ranks than the plan, or is on a GPU
 *       or of FH_CP_PEER_COPIES. A rank neither tells nor cancels if it has no plan, if its plan is of a GPU that was
 *       only named, or if its transport is NULL or of a wrong size: if others run already, its caller calls `cancel`.
 *   (6) The library never prints, never exits, never allocates device memory and never synchronises a stream. It waits
 *       only inside the callbacks of the caller.
 *   (7) A plan is immutable. Any number of threads may run it at the same time, each with a workspace and a transport
 *       of its own.
 */
#ifndef FROGHOPPER_CP_H_
#define FROGHOPPER_CP_H_

#include <froghopper/froghopper.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How data moves between ranks. */
typedef enum fh_cp_scheme {
  /* The fastest scheme that workspace_limit allows, by the model of time. */
  FH_CP_AUTO = 0,
  /* In step t the k and v of rank r - t arrive, while rank r computes with those of step t - 1. o and lse are merged
   * in f32. The workspace holds the k and v of two shards. */
  FH_CP_RING = 1,
  /* A rank fetches all k and v that its rows attend to, and the workspace holds them all. Windows need only the keys
   * before the shard. Where the model of time says that it pays, keys arrive in chunks: rows that attend only to own
   * keys, and calls on own keys and on chunks that are there, do not wait for the others, and such calls are merged in
   * f32; and gradients travel during calls on own keys. Otherwise a range of rows has one call, after all keys. */
  FH_CP_ALL_GATHER = 2,
  /* Each rank gets all rows of heads_q / ranks heads (Ulysses). ranks must divide heads_q, and either ranks divides
   * heads_kv or heads_kv divides ranks. */
  FH_CP_ALL_TO_ALL = 3,
  /* Both levels of a grid of ranks. Groups of heads_ranks neighbours, such as the ranks of a host, exchange heads as in
   * FH_CP_ALL_TO_ALL, so that each rank gets the rows of its group for its heads; ranks at the same place of their
   * groups then form a ring. heads_ranks must divide heads_q, and either it divides heads_kv or heads_kv divides it. */
  FH_CP_ALL_TO_ALL_RING = 4,
  /* The same, with FH_CP_ALL_GATHER between the groups. */
  FH_CP_ALL_TO_ALL_GATHER = 5
} fh_cp_scheme;

/* Which rows a rank holds. */
typedef enum fh_cp_layout {
  /* Contiguous, or if the mask is causal without a window zigzag; with documents of which a zigzag would give a rank
   * more than 1.1 times the mean work FH_CP_BY_DOCUMENT. */
  FH_CP_LAYOUT_AUTO = 0,
  /* Rank r has the rows from floor(r seq / ranks) to floor((r + 1) seq / ranks). */
  FH_CP_CONTIGUOUS = 1,
  /* The sequence is divided likewise into 2 ranks pieces, and rank r has pieces r and 2 ranks - 1 - r. Under a causal
   * mask this balances the work. */
  FH_CP_ZIGZAG = 2,
  /* Needs cu_seqlens. Each document by itself is divided into 2 ranks pieces, and rank r has pieces r and 2 ranks - 1 -
   * r of every document. Under a causal mask this balances the work of documents of any lengths. If 2 ranks divides a
   * length, its pieces are equally long. Else piece i of a document with rows [begin, end) has as many rows as there
   * are numbers t, begin <= t < end, with t mod (2 ranks) = i if i < ranks, else = 3 ranks - 1 - i. So pieces of a
   * document differ by at most one row, and all rows of two ranks by one too: rank r has
   * floor((seq + ranks - 1 - r) / ranks) of them. */
  FH_CP_BY_DOCUMENT = 3
} fh_cp_layout;

/* How the transport moves data. */
typedef enum fh_cp_transfers {
  /* By sends and receives of any kind, such as those of NCCL. */
  FH_CP_SEND_RECV = 0,
  /* By copies into the workspaces of peers, as fh_cp_copy_transport makes them: no SM takes part, so they hardly slow
   * the attention down. All ranks are on one host. Each send says where in the peer's workspace its data go. */
  FH_CP_PEER_COPIES = 1
} fh_cp_transfers;

/* What transfers and calls cost on a machine, for the model of time: measured by `python3 -m froghopper probe`, or
 * known otherwise. A field that is 0 takes the library's own figure. Latencies are seconds of a group of transfers.
 * Bandwidths are bytes a second that a rank receives while it sends as much. Start from fh_cp_topology_init(). */
typedef struct fh_cp_topology {
  size_t size;               /* sizeof(fh_cp_topology) */
  double latency, bandwidth; /* FH_CP_SEND_RECV, within a host, from one peer */
  double gather_bandwidth;   /* the same from several peers at once; 0: bandwidth */
  double slowdown;           /* how many times as long an attention call takes with these transfers; 0, or from 1 */
  double copy_latency, copy_bandwidth, copy_gather_bandwidth, copy_slowdown; /* the same of FH_CP_PEER_COPIES */
  double far_latency, far_bandwidth;                                         /* FH_CP_SEND_RECV between hosts */
  double memory;                        /* bytes a second that a copy in a rank's own memory moves */
  double call;                          /* seconds of a call of the attention in addition to its FLOP */
  double forward_flops, backward_flops; /* FLOP a second of long calls */
} fh_cp_topology;

/* Every number is 0. */
static inline fh_cp_topology fh_cp_topology_init(void) {
  fh_cp_topology t;
  memset(&t, 0, sizeof t);
  t.size = sizeof t;
  return t;
}

/* text: lines of a field's name and a number, as `probe` writes them to a file; what follows # in a line is a comment.
 * Fields without a line become 0. Initialise the struct with fh_cp_topology_init() first: the call reads its size. */
FH_API fh_status fh_cp_topology_parse(const char* text, fh_cp_topology* topology);

/* What is computed, on how many ranks, and which of them this one is. Start from fh_cp_problem_init(). */
typedef struct fh_cp_problem {
  size_t size; /* sizeof(fh_cp_problem) */
  /* The attention over the rows of all ranks, forward or backward. Only fh_cp_plan_create and fh_cp_explain read it.
   * It may have batch, GQA, causal, windows, scale, softcap, sink, alibi and deterministic; other options are refused
   * by name, also varlen: cu_seqlens below says where documents are. Forward, with f16 or bf16: dtype_kv may be an
   * 8-bit type. Then k and v are quantised by the caller, with one scale for each head of the whole sequence, and half
   * the bytes move; results do not depend on the number of ranks, as no rank quantises. */
  const fh_problem* whole;
  int64_t ranks;       /* 1 to 4096 */
  int64_t rank;        /* the number of this rank, from 0 */
  fh_cp_scheme scheme; /* how data moves */
  fh_cp_layout layout; /* which rows a rank holds */
  fh_dtype dtype_out;  /* of o, or of the gradients: FH_USUAL is the type of whole; FH_F32: not rounded */
  /* Ranks compare what they are about to compute, in every call (0 or 1), if fh_cp_tensors.call is a multiple of n (n),
   * or never (-1). They do so by `agree` of the transport, or on the CPU by FH_CP_SEND_RECV; without these nothing is
   * compared. Compared are all fields but rank, and of whole all but max_sms; of ranks_per_host, workspace_limit and
   * topology only what they lead to; call, and whether there is a grad_lse; and on the CPU the numbers of sink,
   * alibi_slopes, scale_k and scale_v. The error names what differs. Ranks that compare wait for those that do not. */
  int32_t check_interval;
  int64_t ranks_per_host;   /* for the model of time: ranks that NVLink connects; 0: all */
  uint64_t workspace_limit; /* in bytes, including the workspace of the attention: FH_CP_AUTO skips schemes of which a
                             * rank needs more; 0: no limit */
  fh_cp_transfers transfers; /* how the transport moves data; the model of time depends on it */
  /* Packed sequences: the rows of all ranks are `documents` sequences, one after the other, and a row attends only to
   * keys of its own. whole then has batch 1, and seq_q and seq_kv are all rows; masks and alibi count within a
   * document. Documents may begin and end anywhere, and may be empty. Shards depend on them in FH_CP_BY_DOCUMENT. */
  int32_t documents; /* at least 1 with cu_seqlens, which says where they are */
  /* [documents + 1], host memory, the same on all ranks: 0, then the end of each document, rising to seq_q. Only
   * fh_cp_plan_create and fh_cp_explain read it. NULL: the rows are one sequence. */
  const int64_t* cu_seqlens;
  /* FH_CP_ALL_TO_ALL_RING and FH_CP_ALL_TO_ALL_GATHER: how many neighbours exchange heads: ranks 0 to heads_ranks - 1,
   * the next heads_ranks, and so on. It divides ranks. 0: the fastest, by the model of time. FH_CP_AUTO considers these
   * two schemes with only this number. With other schemes it must be 0. A shard does not depend on it. */
  int64_t heads_ranks;
  /* For the model of time. Only fh_cp_plan_create and fh_cp_explain read it. NULL: the file that the environment
   * variable FROGHOPPER_CP_TOPOLOGY names, where it is set; else the library's figures. Ranks that choose differently
   * by it are told so when they run. */
  const fh_cp_topology* topology;
} fh_cp_problem;

/* ranks is 1, every other field is 0. */
static inline fh_cp_problem fh_cp_problem_init(void) {
  fh_cp_problem p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  p.ranks = 1;
  return p;
}

/* What one rank does, and what it needs for that. Functions that read a plan return 0 or "" for NULL. */
typedef struct fh_cp_plan fh_cp_plan;

/* Rows [begin, end) of the whole sequence. */
typedef struct fh_cp_range {
  int64_t begin, end; /* the first row, and the row after the last */
} fh_cp_range;

/* target: as for fh_plan_create: "cpu", "hopper", or a GPU that need not be in this machine; the plan of such a GPU
 * can be read, not run. */
FH_API fh_status fh_cp_plan_create(const fh_cp_problem* problem, const char* target, fh_cp_plan** plan);
FH_API void fh_cp_plan_destroy(fh_cp_plan* plan); /* NULL: nothing happens */

/* The rows that a rank holds, in order: at most two ranges, in FH_CP_BY_DOCUMENT two for each document, which are not
 * empty and do not touch. Writes at most `capacity` ranges to `ranges`; *count becomes how many there are, which may be
 * more. */
FH_API fh_status fh_cp_plan_rows(const fh_cp_plan* plan, int64_t rank, fh_cp_range* ranges, int64_t capacity,
                                 int64_t* count);
FH_API uint64_t fh_cp_plan_workspace_bytes(const fh_cp_plan* plan); /* what fh_cp_plan_run needs on this rank */
FH_API int fh_cp_plan_on_gpu(const fh_cp_plan* plan);          /* nonzero: tensors and workspace are GPU memory */
FH_API fh_cp_scheme fh_cp_plan_scheme(const fh_cp_plan* plan); /* never FH_CP_AUTO */
FH_API fh_cp_layout fh_cp_plan_layout(const fh_cp_plan* plan); /* never FH_CP_LAYOUT_AUTO */
/* FH_CP_ALL_TO_ALL_RING and FH_CP_ALL_TO_ALL_GATHER: how many ranks exchange heads, never 0. With other schemes 0. */
FH_API int64_t fh_cp_plan_heads_ranks(const fh_cp_plan* plan);
/* What this rank receives and sends in a run with grad_lse, without digests. */
FH_API uint64_t fh_cp_plan_bytes_in(const fh_cp_plan* plan);
FH_API uint64_t fh_cp_plan_bytes_out(const fh_cp_plan* plan);
/* Where calls of the attention have several documents, their cu_seqlens, one after the other: *count numbers in host
 * memory, which live as long as the plan. 0 and NULL: no call has. See fh_cp_tensors.tables. */
FH_API const int32_t* fh_cp_plan_tables(const fh_cp_plan* plan, int64_t* count);
/* Predicted seconds of a run on the slowest rank, by the model of time: docs/15-context-parallel-c.md. */
FH_API double fh_cp_plan_seconds(const fh_cp_plan* plan);
/* The plan as lines of text: the scheme and the reason for it, then the steps of this rank, with transfers, rows,
 * keys, bytes, FLOP and predicted microseconds. No newline follows the last one. Lives as long as the plan. */
FH_API const char* fh_cp_plan_text(const fh_cp_plan* plan);
/* The same text for a problem, or why it cannot be computed. Lives until this thread calls fh_cp_explain again. */
FH_API const char* fh_cp_explain(const fh_cp_problem* problem, const char* target);

/* Bytes that are sent to a peer or received from one. */
typedef struct fh_cp_transfer {
  int64_t peer;   /* a rank other than this one */
  void* data;     /* host memory for a plan on the CPU, GPU memory for a plan on a GPU. A send only reads it */
  uint64_t bytes; /* never 0 */
  /* Of a send with FH_CP_PEER_COPIES: where in the peer's workspace the data go, in bytes. Else 0. */
  uint64_t peer_offset;
} fh_cp_transfer;

/* The functions that move data: yours, or those of fh_cp_nccl_transport. They return 0, or another number for a
 * failure, which makes fh_cp_plan_run fail. They are called on the thread that calls fh_cp_plan_run. Two runs may not
 * use a transport at the same time. */
typedef struct fh_cp_transport {
  size_t size;         /* sizeof(fh_cp_transport) */
  void* context;       /* passed to each function */
  int64_t ranks, rank; /* as in the plan, or the run is refused, and `agree` tells the other ranks */
  /* Starts one group of transfers, and may return before they are done. All ranks make the same number of calls in the
   * same order, also if a rank has nothing to move (counts of 0). In the n-th call, the i-th send to a peer matches
   * the i-th receive of that peer from this rank, and has the same length. stream is the stream of the run: after the
   * work that is now in it, the data to send are there and the receive buffers may be overwritten. *ticket: any value
   * that tells `wait` which group it is. The arrays live until the function returns. */
  int (*exchange)(void* context, const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs,
                  int64_t recv_count, void* stream, void** ticket);
  /* Called once for each exchange that returned 0, in the same order. On the CPU it returns when all data are received
   * and the sent memory may be overwritten. On a GPU it makes `stream` wait for that, and may return at once. */
  int (*wait)(void* context, void* ticket, void* stream);
  /* May be NULL. Called after a failure. Cancels the transfers in flight, so that memory is no longer accessed and
   * peers fail too. No wait follows; the transport releases what its tickets stand for. */
  void (*cancel)(void* context);
  /* May be NULL. Returns a text about the last failure, which the library copies at once. */
  const char* (*error)(void* context);
  /* May be NULL: then digests go through `exchange` on the CPU if transfers is FH_CP_SEND_RECV, else nowhere. Writes
   * the digest of each rank to digests[0 .. ranks - 1], and returns when all are there. A run calls it once, and where
   * digests differ some dozen times more on all ranks, with fields for digests, to find out which one differs. */
  int (*agree)(void* context, uint64_t digest, uint64_t* digests);
  /* FH_CP_PEER_COPIES: `exchange` goes by peer_offset, which only plans with transfers FH_CP_PEER_COPIES set. A run of
   * another plan over such a transport is refused. */
  fh_cp_transfers transfers;
} fh_cp_transport;

/* All NULL. */
static inline fh_cp_transport fh_cp_transport_init(void) {
  fh_cp_transport t;
  memset(&t, 0, sizeof t);
  t.size = sizeof t;
  return t;
}

/* Operations on memory other than attention. For a plan on the CPU this is NULL: the library has its own. On a GPU the
 * caller gives those of fh_cp_cuda_memory, or its own. All enqueue on `stream`, the stream of the run, and return 0,
 * or another number for a failure. */
typedef struct fh_cp_memory {
  size_t size;   /* sizeof(fh_cp_memory) */
  void* context; /* passed to each function */
  /* sets `words` 32-bit words to the value */
  int (*fill)(void* context, void* data, uint32_t value, uint64_t words, void* stream);
  /* copies `rows` rows of `bytes` bytes; rows begin to_pitch and from_pitch bytes apart; nothing overlaps */
  int (*copy)(void* context, void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch, uint64_t bytes,
              uint64_t rows, void* stream);
  /* into[i] += from[i]. Needed for gradients that several ranks contribute to: ring, all-gather, and all-to-all with
   * fewer KV heads than ranks. */
  int (*add)(void* context, float* into, const float* from, uint64_t count, void* stream);
  /* to[i] = from[i], rounded to f16 or bf16, to nearest even. Needed if dtype_out is one of these: for gradients, and
   * for o of documents and of all-to-all with a ring or an all-gather inside. */
  int (*convert)(void* context, void* to, fh_dtype dtype, const float* from, uint64_t count, void* stream);
  /* to[r, i] = from[r] for i below `columns`. Needed for sinks, where o is FH_F32 or has documents. */
  int (*spread)(void* context, float* to, const float* from, uint64_t rows, uint64_t columns, void* stream);
} fh_cp_memory;

/* All NULL. */
static inline fh_cp_memory fh_cp_memory_init(void) {
  fh_cp_memory m;
  memset(&m, 0, sizeof m);
  m.size = sizeof m;
  return m;
}

/* The shards of this rank, dense, see (3). Addresses are multiples of the size of a number; on a GPU those of q, k, v,
 * o and their gradients are multiples of 16 bytes. Outputs share no byte with another tensor or with the workspace. */
typedef struct fh_cp_tensors {
  size_t size; /* sizeof(fh_cp_tensors) */
  /* A counter of the calls on these ranks. Before data move, ranks compare a digest of it, the problem and the plan,
   * so a rank that is a call behind is noticed. 0 on all ranks is fine, but then a missed call is not noticed. */
  uint64_t call;
  const void *q, *k, *v; /* in whole->dtype, k and v in whole->dtype_kv. Read. NULL if the shard is empty. */
  void* o;               /* forward: written, in dtype_out. Backward: read, in whole->dtype. */
  float* lse;            /* [batch, heads_q, rows]. Forward: written, may be NULL. Backward: read. */
  /* The same on all ranks. Ranks on the CPU compare the numbers (check_interval). In GPU memory nobody compares them:
   * if they differ there, all ranks get FH_OK and wrong results. So it is with scale_k and scale_v. */
  const float* sink;         /* sink: [heads_q]; else NULL */
  const float* alibi_slopes; /* alibi: [heads_q]; else NULL */
  /* Backward only, else NULL. */
  const void* grad_o; /* in whole->dtype. Read. */
  /* Shape of lse. Read. NULL on all ranks: lse has no gradient. Otherwise no rank gives NULL; a rank whose shard is
   * empty gives any other address, which is not read. */
  const float* grad_lse;
  void *grad_q, *grad_k, *grad_v; /* in dtype_out. Written. */
  /* sink: [heads_q]. Written: the contribution of this rank. The gradient is the sum over all ranks, as for every
   * parameter that is the same on all of them. */
  float* grad_sink;
  /* On a GPU, where fh_cp_plan_tables gives any: a copy of them in GPU memory. A plan never changes them, so it may be
   * made once. Read. Else NULL. */
  const int32_t* tables;
  /* whole->dtype_kv of 8 bits: [heads_kv], the same on all ranks, see sink. Read. A key is its elements times the scale
   * of its head, from 2^-126 to 2^126 as in froghopper.h, which is looked at on the CPU. Else NULL. */
  const float *scale_k, *scale_v;
} fh_cp_tensors;

/* All NULL. */
static inline fh_cp_tensors fh_cp_tensors_init(void) {
  fh_cp_tensors t;
  memset(&t, 0, sizeof t);
  t.size = sizeof t;
  return t;
}

/* Runs the plan of this rank, as the others do at the same time. memory: NULL on the CPU. workspace: 256-byte aligned,
 * any content, in the same kind of memory as the tensors; may be NULL if the plan needs 0 bytes. It may be reused when
 * the call has returned; on a GPU only by later work in the stream. With one rank transport may be NULL. */
FH_API fh_status fh_cp_plan_run(const fh_cp_plan* plan, const fh_cp_transport* transport, const fh_cp_memory* memory,
                                const fh_cp_tensors* tensors, void* workspace, uint64_t workspace_bytes,
                                void* stream);

/* A transport over NCCL, which is found at run time (libnccl.so.2, or the file that library names).
 * comm: an ncclComm_t, which the caller makes and destroys. After a run that failed in the transport the caller must
 *   not destroy it: `cancel` aborts the communicator, and NCCL frees it.
 * comm_stream: a stream of the caller for transfers, so that they overlap with the attention; not the stream of the
 *   run. NULL: transfers run in the stream of the run, without overlap. `agree` waits on it.
 * timeout_seconds: how long the host waits in `agree` and `exchange` for other ranks; 0: 600. Only a nonblocking
 *   communicator (ncclConfig_t.blocking = 0) returns to the library while NCCL connects ranks, which it does at their
 *   first transfers. With a blocking one a rank that never comes to these holds up the others without a limit.
 * scratch: 256-byte aligned GPU memory of 8 (ranks + 1) bytes for digests; NULL: digests are not compared.
 * The transport is not thread safe. Destroy it after the last run is done. */
FH_API fh_status fh_cp_nccl_transport(void* comm, const char* library, void* comm_stream, double timeout_seconds,
                                      void* scratch, fh_cp_transport* transport);
FH_API void fh_cp_nccl_transport_destroy(fh_cp_transport* transport); /* NULL: nothing happens */

/* The memory of all ranks of one host, for fh_cp_copy_transport. Start from fh_cp_peers_init(). */
typedef struct fh_cp_peers {
  size_t size;             /* sizeof(fh_cp_peers) */
  int64_t ranks, rank;     /* as in the plan */
  void* const* workspaces; /* [ranks]: addresses, in this process, of all ranks' workspaces; the run gets its own */
  /* [ranks]: the address, in this process, of each rank's signals: 2 ranks words of 64 bits of GPU memory, which are 0
   * before the first transport over them exists, and which nothing else writes. A later transport needs other words, or
   * zeros. */
  uint64_t* const* signals;
  void* copy_stream;   /* a stream for the copies; not the stream of the run */
  const char* library; /* the CUDA driver; NULL: libcuda.so.1 */
} fh_cp_peers;

/* All 0 and NULL. */
static inline fh_cp_peers fh_cp_peers_init(void) {
  fh_cp_peers p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  return p;
}

/* A transport between GPUs of one host by the driver's copies, for plans with FH_CP_PEER_COPIES: each rank writes to
 * the workspaces of its peers. These are mapped into this process: by cuMemMap, CUDA IPC, PyTorch's symmetric memory,
 * or, for GPUs of one process, by cuCtxEnablePeerAccess. Streams wait for signals of peers by cuStreamWaitValue64, for
 * which no kernel runs; the host waits for nothing. FH_UNSUPPORTED: the GPU has no such waits. The arrays may be
 * released afterwards, the memory that they point to when the transport is destroyed. Any CUDA context may be current
 * on the threads that call, or none: the transport works in that of copy_stream.
 * A rank that ends or fails leaves its peers' streams waiting. Their caller, who notices that, calls `cancel`: it ends
 * the waits of this rank for good, whatever a slow peer writes later. What its streams compute then, and what they
 * copied to its peers, is undefined: all ranks of the run must give it up. `exchange` and `wait` of a cancelled
 * transport fail. `wait` may take tickets in any order, each once. After 2^32 - 1 exchanges `exchange` fails: replace
 * the transports of all ranks before.
 * It has no `agree`: set one, or digests are not compared. Only `cancel` is thread safe. Destroy it after the last run.
 */
FH_API fh_status fh_cp_copy_transport(const fh_cp_peers* peers, fh_cp_transport* transport);
FH_API void fh_cp_copy_transport_destroy(fh_cp_transport* transport); /* NULL: nothing happens */

/* Sets all functions. `fill` calls the CUDA driver, which is found at run time. So does `copy` for one row, and where
 * an address, a pitch or `bytes` is no multiple of 16. All others are kernels of libfroghopper, which must be of the
 * same build. They are loaded here, on the GPU whose context is current on this thread; else at their first use. */
FH_API fh_status fh_cp_cuda_memory(fh_cp_memory* memory);

/* Of this thread; valid until its next failing call; "" before the first. Read it in a statement after the call that
 * failed, as fh_last_error(). */
FH_API const char* fh_cp_last_error(void);
FH_API const char* fh_cp_scheme_name(fh_cp_scheme scheme); /* "all_gather" */

#ifdef __cplusplus
}
#endif
#endif /* FROGHOPPER_CP_H_ */
