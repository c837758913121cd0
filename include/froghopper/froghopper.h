/* SPDX-License-Identifier: Apache-2.0
 *
 * froghopper.h - exact attention on NVIDIA Hopper GPUs and on the CPU: the C interface.
 *
 *   O = softmax(scale Q K^T + mask) V, and the gradients of Q, K and V
 *
 *   describe   fh_problem p = fh_problem_init(); p.batch = 2; ...       shapes and options, no pointers
 *   plan       fh_plan_create(&p, NULL, &plan);                         picks backend, kernel, tiles, workspace
 *   run        fh_plan_run(plan, &tensors, workspace, bytes, stream);   on a GPU: asynchronous, graph-capturable
 *   destroy    fh_plan_destroy(plan);
 *   or         fh_attention(&p, NULL, &tensors, workspace, bytes, stream);   all in one call; it caches plans
 *
 * Conventions
 *   (1) Shapes read [batch, seq, heads, dim]. Strides are int64_t and count elements. The stride of dim is 1.
 *   (2) Calls that can fail return fh_status, and fh_last_error() explains the last failure on this thread. A call
 *       that fails has launched nothing and written nothing, with two exceptions, after which the outputs are
 *       undefined: FH_INTERRUPTED, and FH_LAUNCH_FAILED of a plan with several launches (gradients on a GPU).
 *   (3) A struct starts with its own size, which fh_problem_init() and fh_tensors_init() set. New versions only append
 *       fields, without gaps. Zero means "as before": a type of 0 is the type of q, a tensor of NULL is absent, a flag
 *       of 0 is off. Compile with the header of the library that you run, or with an older one: docs/12-using.md.
 *   (4) The library never prints, never exits, never allocates device memory and never synchronises a stream.
 *   (5) A plan is immutable. Any number of threads may run it at the same time, each with its own workspace.
 *   (6) A forward problem writes every row of o and lse that the shapes name, and nothing else. A row that attends to
 *       no key gets o = 0 and lse = -inf, or lse = the sink of its head. Padding rows, which belong to no sequence,
 *       get o = 0 and lse = -inf. With accumulate, the call merges its keys into the o, lse and max_logit of earlier
 *       calls over other keys; rows without a key and padding rows do not change. Start with o = 0, lse = -inf (or the
 *       sink) and max_logit = -inf. Where lse is -inf, o is not read.
 *   (7) Memory of unused queries and keys (padding, rows past the end of a sequence) may hold anything, also NaN. This
 *       includes o, lse, grad_o and grad_lse where they are read.
 *   (8) A backward problem (FH_BACKWARD) reads q, k, v, grad_o, and the o and lse of a forward problem of the same
 *       description. It writes every row of grad_q, grad_k, grad_v and grad_gate that the shapes name, and nothing
 *       else: 0 for rows that attend to no key, for keys that no row attends to, and for padding rows. With accumulate
 *       it adds to the old values; o and lse are then over all keys, and k and v may be a part of them.
 *   (9) A quantise problem (FH_QUANTISE) reads q, k and v, which must be finite. It writes 8-bit copies (quantised_q,
 *       ...) and scales (scale_q, ...) for a forward problem of that type; scales of blocks without rows are 1.
 *       Padding rows are not written. Each of q, k and v may be left out, with its copy, scales and mean.
 *  (10) Options have a meaning up to the ends of fp32's range: docs/1-math.md, section 1.6. An infinite sink, merged
 *       lse or slope means a very large one, and NaN in one of them affects only its head or row.
 *  (11) A tensor that is written, and the workspace, must share no byte with any other tensor, including rows past the
 *       end of a sequence (FH_INVALID_TENSOR). Tensors may interleave: q, k, v and o may be columns of one tensor.
 *       They are refused too if a few thousand steps cannot prove them disjoint. Tensors that are only read may
 *       overlap: k and v may be the same.
 *  (12) An append problem (FH_APPEND) reads new rows of q, k and v, and writes q_out and rows of cache_k and cache_v:
 *       docs/13-serving.md. You may leave out each of q, k and v with its output; q_out may be q. No two rows may go
 *       to the same row of the cache. Padding rows and rows without a slot are not written, nor is other memory.
 */
#ifndef FROGHOPPER_FROGHOPPER_H_
#define FROGHOPPER_FROGHOPPER_H_

#if !defined(__cplusplus) && defined(__STRICT_ANSI__) && (!defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L)
#error "froghopper.h is C99: compile with -std=c99, -std=gnu89 or a newer standard."
#endif

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FH_VERSION_MAJOR 0 /* of this header; fh_version() returns the version of the library that runs */
#define FH_VERSION_MINOR 4 /* before 1.0 a new minor version may change the interface */
#define FH_VERSION_PATCH 0 /* a new patch version does not change the interface */
/* The version as one number, for comparisons: 0.4.0 is 400, 1.2.3 is 10203. */
#define FH_VERSION (FH_VERSION_MAJOR * 10000 + FH_VERSION_MINOR * 100 + FH_VERSION_PATCH)

#if defined(__GNUC__)
#define FH_API __attribute__((visibility("default"))) /* an exported symbol */
#else
#define FH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fh_plan fh_plan; /* how and where a problem is computed */

/* What a call returns. */
typedef enum fh_status {
  FH_OK = 0,
  FH_INVALID_PROBLEM = 1, /* the description contradicts itself, or the target does not exist */
  FH_UNSUPPORTED = 2,     /* the description is consistent, but the chosen backend does not compute it */
  FH_INVALID_TENSOR = 3,  /* a pointer, stride, alignment or workspace does not match the plan */
  FH_NO_DEVICE = 4,       /* there is no Hopper GPU, no driver, or the driver is too old */
  FH_COMPILE_FAILED = 5,  /* a kernel could not be compiled or loaded */
  FH_LAUNCH_FAILED = 6,   /* the driver refused the launch */
  FH_INTERNAL = 7,        /* out of host memory or threads, or a bug in the library */
  FH_INTERRUPTED = 8      /* SIGINT arrived, see fh_watch_interrupts; the outputs are undefined */
} fh_status;

/* What is computed. */
typedef enum fh_op { FH_FORWARD = 1, FH_BACKWARD = 2, FH_QUANTISE = 3, FH_APPEND = 4 } fh_op;

/* f32: only on the CPU. e4m3 (up to 448, no infinity) and e5m2 (57344): a byte a value, with scales; forward only. */
typedef enum fh_dtype {
  FH_USUAL = 0, /* the default of a field: see dtype_kv, dtype_o, dtype_rotary and dtype_norm */
  FH_F16 = 1,
  FH_BF16 = 2,
  FH_F32 = 3,
  FH_E4M3 = 4,
  FH_E5M2 = 5
} fh_dtype;

/* Where the diagonal of a mask lies when the query length and the KV length differ. */
typedef enum fh_align {
  FH_BOTTOM_RIGHT = 0, /* through query i and key i + seq_kv - seq_q: the last query attends to the last key */
  FH_TOP_LEFT = 1      /* through query i and key i: the first query attends to the first key */
} fh_align;

#define FH_ALL INT64_C(-1) /* a window without a bound on that side */

/* Which call this is of several in which the same queries attend to other keys. NONE: of one. ONLY: first and last. */
typedef enum fh_phase { FH_PHASE_NONE, FH_PHASE_FIRST, FH_PHASE_MIDDLE, FH_PHASE_LAST, FH_PHASE_ONLY } fh_phase;

/* Start from fh_problem_init(), not from zeros: a window of 0 keys is a window, FH_ALL is none. With zeros in both
 * windows each query attends to the one key on its diagonal. */
typedef struct fh_problem {
  size_t size; /* sizeof(fh_problem) */

  /* What is computed. */
  fh_op op;
  fh_dtype dtype;        /* of q, k, v, o and their gradients; for an 8-bit type, dtype_o is the type of o */
  int64_t batch;         /* number of sequences; fh_problem_init sets 1, and 0 is legal and computes nothing */
  int64_t heads_q;       /* at least 1 */
  int64_t heads_kv;      /* at least 1, divides heads_q: query head h reads KV head h / (heads_q / heads_kv) */
  int64_t seq_q, seq_kv; /* query and KV length of every sequence; with varlen, upper bounds on the longest */
  /* Head dim of q and k: a multiple of 8 from 8 to 512; with 8-bit k and v of 16, and with 8-bit q up to 256. */
  int64_t dim_qk;
  int64_t dim_v; /* head dim of v and o, likewise; 0 means dim_qk */
  /* varlen only: rows of the packed q, and of the packed k and v: at least those of all sequences. With a total_q of 0
   * a GPU plan computes nothing: it cannot see that you forgot it. */
  int64_t total_q, total_kv;
  int32_t varlen;       /* nonzero: sequences are packed in [1, total, heads, dim], bounded by cu_seqlens */
  int32_t seqused;      /* nonzero: seqused_q or seqused_kv says how many rows of each sequence are used */
  int32_t causal;       /* nonzero: window_right = 0 */
  fh_align align;       /* of causal, window, attention_chunk and alibi */
  int64_t window_left;  /* keys before the diagonal that a query attends to; FH_ALL: no bound */
  int64_t window_right; /* keys after the diagonal that a query attends to; FH_ALL: no bound */
  float scale;          /* of q k^T, at most 2^127; 0 means 1/sqrt(dim_qk), -0.0f means a scale of zero */
  float softcap;        /* a score becomes softcap tanh(score / softcap); 0 means none; on a GPU at most 2^15 */
  int32_t sink;         /* nonzero: tensors.sink has one more logit a head, only in the denominator; see phase too */

  /* How it may be computed. These change the result by no more than rounding. */
  int32_t deterministic; /* nonzero: gradients are bitwise identical from run to run; the forward pass always is */
  int64_t max_sms;       /* SMs (GPU) or threads (CPU) that a run may occupy; 0 means all */

  /* More of what is computed. New fields are appended, so the groups are not contiguous. */
  /* Nonzero. Backward: gradients are added to the old values, and grad_q, grad_k and grad_v are f32. Forward: o and
   * lse are merged with the old values, see (6), o is f32, and a sink is refused. */
  int32_t accumulate;
  /* Nonzero: tensors.alibi_slopes has a slope for each query head, and -slope |i + d - j| is added to the score of
   * query i and key j, after scale and softcap. d is seq_kv - seq_q, or 0 with FH_TOP_LEFT. */
  int32_t alibi;

  /* 8-bit types. The value of an element is the stored value times its scale (tensors.scale_q, scale_k, scale_v). */
  fh_dtype dtype_kv; /* of k and v; FH_USUAL: dtype. Forward: they may be 8-bit with q in f16 or bf16 */
  /* Of o. FH_USUAL: dtype, bf16 if dtype is 8-bit, f32 forward with accumulate. With 8-bit k and v: any but 8-bit. */
  fh_dtype dtype_o;
  int64_t scale_rows;      /* rows of a sequence that share a scale, from its first row on: 128; 0: all of them */
  int32_t scale_v_columns; /* nonzero: v has one scale for each column instead, over all rows of a sequence */

  /* More of how it may be computed; this changes the result by no more than rounding. Forward only. Nonzero: the output
   * is batch-invariant: a row has the same bits whatever batch, bounds, max_sms and other rows it is computed with;
   * docs/1-math.md. */
  int32_t invariant;

  /* Quantise only. dtype is the type of q, k and v, which are read, and dtype_kv the 8-bit type that is written. */
  /* Nonzero: q and k are first multiplied by a Hadamard matrix with random signs, which keeps q k^T. */
  int32_t rotate;
  uint32_t rotate_seed; /* of the signs; q and k of one attention need the same seed */

  /* 8-bit k and v. Nonzero: a quantise problem subtracts the mean of a sequence's rows from k and v, and writes it to
   * mean_k and mean_v; a forward problem adds it. */
  int32_t smooth;

  /* Forward only. Nonzero: tensors.max_logit gets the largest score of each sequence and query head. */
  int32_t max_logit;
  /* Keys are in chunks of this size, from key 0 on. A query attends only to the chunk of the key on its diagonal, and
   * there to the keys that causal and window allow. 0: no chunks. */
  int64_t attention_chunk;

  /* Paged K and V, forward only: row r of a sequence is row r % page_size of page block_table[r / page_size]. With
   * varlen only q is packed, and total_kv is 0, cu_seqlens_kv NULL. A sequence has seq_kv or seqused_kv rows. */
  int64_t page_size; /* rows of a page; 0: k and v are not paged */
  int64_t pages;     /* number of pages in the pool of k and v */

  /* Append only. dtype is the type of q, k, v and q_out, which have seq_q rows; dtype_kv is the type of the cache,
   * FH_USUAL or 8-bit, which has seq_kv rows a sequence, or pages. Row i of sequence b goes to row i, or seqused_kv[b]
   * + i. */
  /* Nonzero: tensors.slot_mapping says where rows go. Then varlen and seqused are 0, and with page_size seq_kv too. */
  int32_t slots;
  /* Nonzero: tensors.positions has the positions for the rotary embedding; 0: they follow from where rows go. */
  int32_t positions;
  int64_t rotary_dim;         /* the first columns of q and k, which are rotated: even; 0: none */
  int64_t rotary_rows;        /* positions that rotary_cos and rotary_sin have, from 0 on */
  int32_t rotary_interleaved; /* nonzero: columns 2i and 2i + 1 are a pair; 0: i and i + rotary_dim / 2 are */
  /* Nonzero: RMS norm before the rotation: rows of q and k are divided by sqrt(mean of squares + norm_epsilon), and
   * multiplied by norm_q and norm_k. */
  int32_t norm;
  float norm_epsilon; /* at least 0; models use 1e-5 or 1e-6. With 0 a row of zeros becomes NaN */
  /* Nonzero: each row of an 8-bit cache has its own scales. They are written; with 0, scale_k and scale_v are read and
   * have one scale a head. Forward: they are read, where append has written them; on a GPU with 16-bit q. */
  int32_t scale_tokens;
  fh_dtype dtype_rotary; /* of rotary_cos and rotary_sin; dtype (or FH_USUAL, which means dtype) or FH_F32 */
  fh_dtype dtype_norm;   /* of norm_q and norm_k, likewise */

  /* Nonzero: o is multiplied by 1 / (1 + exp(-tensors.gate)), element by element, before it is rounded; lse and
   * max_logit are not. Not with accumulate or phases: several calls share o, and have no gate of their own. */
  int32_t gate;
  /* Forward: o is merged in f32 in o_sum, and the last call rounds it to o. All calls but FH_PHASE_FIRST read o_sum and
   * lse: without it they merge with what these held, such as NaN. Backward: grad_q is summed in the workspace. Give all
   * calls the same one, and use it for nothing else until the last, which writes grad_q and grad_sink. Before it o
   * (forward), grad_q and grad_sink are NULL. Set sink in every call: the first adds it (forward), the last writes
   * grad_sink. Calls differ in keys, mask, phase and, for grad_k and grad_v, accumulate: docs/12-using.md. */
  fh_phase phase;
} fh_problem;

/* A forward problem in bf16 without a mask: windows are FH_ALL, every other field is 0 and batch is 1. */
static inline fh_problem fh_problem_init(void) {
  fh_problem p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  p.op = FH_FORWARD;
  p.dtype = FH_BF16;
  p.batch = 1;
  p.window_left = p.window_right = FH_ALL;
  return p;
}

/* A tensor of the caller, [batch, seq, heads, dim]. */
typedef struct fh_tensor {
  void* data; /* the address of its first element */
  /* Elements; stride_batch is ignored with varlen. Without gaps they are seq * heads * dim, heads * dim and dim; for
   * [batch, heads, seq, dim] in memory, heads * seq * dim, dim and seq * dim. In a tensor that is read, a stride may be
   * 0: the entries along that axis are the same memory. A stride of pages may not. If q, k, v, o, gate, a mean or
   * alibi_slopes has several rows, three strides of 0 are refused as forgotten. Scales and grad_o may have them. */
  int64_t stride_batch, stride_seq, stride_head;
} fh_tensor;

/* Host memory for a plan on the CPU, memory of one GPU for a plan on Hopper, also managed memory. On Hopper q, k, v, o,
 * gate and their gradients are 16-byte aligned, and the strides of extents above 1 are multiples of 16 bytes. */
typedef struct fh_tensors {
  size_t size; /* sizeof(fh_tensors) */
  fh_tensor q; /* [batch, seq_q, heads_q, dim_qk]; varlen [total_q, heads_q, dim_qk]. Read. */
  /* [batch, seq_kv, heads_kv, dim_qk]; varlen [total_kv, ...]. page_size: the pool, [pages, page_size, heads_kv,
   * dim_qk], and stride_batch is the stride of pages. Read. */
  fh_tensor k;
  fh_tensor v; /* as k, with dim_v. Read. */
  /* [batch, seq_q, heads_q, dim_v]; varlen [total_q, ...]. Written; with accumulate merged; backward: read. */
  fh_tensor o;
  /* Natural log of the softmax denominator, sink included: [batch, heads_q, seq_q], varlen [heads_q, total_q], dense or
   * with lse_stride_*. Written, may be NULL; backward: read; forward with accumulate: merged. */
  float* lse;
  /* varlen: [batch + 1], 0 and then the end of each sequence, rising; else NULL. Forward with seqused_kv, sequence b
   * has the seqused_kv[b] keys from row cu_seqlens_kv[b] on, and cu_seqlens_kv[0] need not be 0: there may be padding
   * before and after the keys of each sequence (docs/13-serving.md). The CPU checks this, a GPU plan cannot. */
  const int32_t* cu_seqlens_q;
  const int32_t* cu_seqlens_kv; /* the same of k and v */
  /* seqused: [batch], how many rows of each sequence are used; NULL: all. FH_BOTTOM_RIGHT aligns the last used row of
   * q with the last used key. So with a mask and padding in q, give both lengths, or use FH_TOP_LEFT. */
  const int32_t* seqused_q;
  const int32_t* seqused_kv; /* the same of k and v. FH_APPEND: rows in the cache before the new ones */
  const float* sink; /* sink: [heads_q]; else NULL. -inf: the head has no sink; +inf: lse is +inf and o is 0 */

  /* Backward only, else NULL. */
  fh_tensor grad_o;                 /* shape of o. Read. */
  fh_tensor grad_q, grad_k, grad_v; /* shapes of q, k and v. Written; accumulate: added to, f32; phase: see there */
  const float* grad_lse;            /* shape of lse. Read; NULL: lse has no gradient. */
  float* grad_sink;                 /* sink: [heads_q]. Written; accumulate without phase: added to. */

  /* 8-bit types only, else NULL: f32 scales from 2^-126 to 2^126, which the CPU checks and a GPU plan cannot. Read;
   * quantise: written. `batch` counts sequences and stride_batch is used, also with varlen. stride_seq is that of the
   * ceil(seq / scale_rows) blocks, 1 if scale_rows is 0. A stride of 0 shares a scale. Unused blocks are not read. */
  fh_tensor scale_q; /* [batch, blocks of seq_q, heads_q, 1] */
  /* [batch, blocks of seq_kv, heads_kv, 1]; scale_tokens: one for each row of k, [batch, seq_kv, heads_kv, 1], varlen
   * [total_kv, ...], page_size: [pages, page_size, heads_kv, 1]. Of rows that are not used none is read. */
  fh_tensor scale_k;
  fh_tensor scale_v; /* as scale_k; scale_v_columns: [batch, 1, heads_kv, dim_v] */

  /* Quantise only, else NULL. */
  fh_tensor quantised_q, quantised_k, quantised_v; /* shapes of q, k and v, in dtype_kv. Written. */

  /* smooth only, else NULL: the means that were subtracted before quantisation, f32 and finite; rotated if k is. Read;
   * quantise: written, 0 for a sequence without rows. batch and stride_batch as in scales. */
  fh_tensor mean_k; /* [batch, 1, heads_kv, dim_qk] */
  fh_tensor mean_v; /* [batch, 1, heads_kv, dim_v] */

  /* alibi only, else NULL: f32 [batch, 1, heads_q, 1], strides as in scales; [heads_q] has 0, 0 and 1. A slope beyond
   * 1.2e27 counts as 1.2e27. Read; slopes have no gradients. */
  fh_tensor alibi_slopes;

  /* max_logit only, else NULL: [batch, heads_q], dense, also with varlen. The largest score after scale, softcap and
   * alibi, in natural units, without sink and NaN; -inf if no row attends to a key. Written; accumulate: merged. */
  float* max_logit;

  /* page_size only, else NULL: int32 [batch, ceil(seq_kv / page_size)], pages of the pool from 0 to pages - 1; strides
   * are stride_batch and stride_seq, without gaps ceil(seq_kv / page_size) and 1. Only columns with used rows are read,
   * and sequences may share pages. The CPU checks the entries, a GPU plan cannot. */
  fh_tensor block_table;

  /* Append only, else NULL. k and v have as many rows as q, [batch, seq_q, heads_kv, dim]. scale_k and scale_v are [1,
   * 1, heads_kv, 1]; with scale_tokens they are written and have the rows of the cache, [batch or pages, rows,
   * heads_kv, 1]. The cache stores a value divided by its scale. cache_k is [batch, seq_kv, heads_kv, dim_qk];
   * page_size: [pages, page_size, heads_kv, dim_qk]; its strides say how that lies. The new rows are written. */
  fh_tensor cache_k;
  fh_tensor cache_v; /* as cache_k, with dim_v */
  fh_tensor q_out;   /* shape of q; or q itself, with its strides. Written. */
  /* slots: [batch, seq_q], dense. Slot s is row s % page_size of page s / page_size; without page_size it is row s %
   * seq_kv of sequence s / seq_kv. A negative slot: k and v are not written. A slot past the cache: the CPU refuses
   * it, a GPU plan does not write the row. */
  const int64_t* slot_mapping;
  /* positions: [batch, seq_q], dense, varlen [total_q]; below rotary_rows. Others: the CPU refuses them, a GPU plan
   * does not write that row of q and k. */
  const int64_t* positions;
  fh_tensor rotary_cos, rotary_sin; /* rotary_dim: [1, rotary_rows, 1, rotary_dim / 2]. Read. */
  fh_tensor norm_q, norm_k;         /* norm: [1, 1, 1, dim_qk]; NULL: all 1. Read. */

  /* gate only, else NULL: shape and type of o. Read; rows that attend to no key are not. */
  fh_tensor gate;
  fh_tensor grad_gate; /* backward with gate: shape and type of o. Written. */

  /* Elements between numbers of lse along batch (ignored with varlen), seq and heads; all 0: dense, as above. For
   * [batch, seq_q, heads_q], varlen [total_q, heads_q]: seq_q * heads_q, heads_q and 1. grad_lse is dense. */
  int64_t lse_stride_batch, lse_stride_seq, lse_stride_head;

  /* Forward with phase, but for FH_PHASE_ONLY; else NULL: f32, shape of o. Written by the first call, then merged; what
   * is in it after the last call is undefined. */
  fh_tensor o_sum;
} fh_tensors;

static inline fh_tensors fh_tensors_init(void) {
  fh_tensors t;
  memset(&t, 0, sizeof t);
  t.size = sizeof t;
  return t;
}

/* target: where the problem runs.
 *   NULL or "auto"   the current Hopper GPU if there is one and it computes this problem, else the CPU. fh_explain says
 *                    why. In fh_attention the tensors decide: the GPU that holds them, or the CPU
 *   "hopper"         the current Hopper GPU, that of the CUDA context of this thread, or GPU 0 if there is none; or a
 *                    refusal. "hopper:1" for GPU 1
 *   "cpu"            the CPU of this machine
 *   "h200", "h100"   a GPU that need not be in this machine: the plan can be read, not run. You can describe another:
 *                    "mine 64sm l2=40MiB clock=1500MHz memory=2000GB/s"
 * Hints (docs/4-planning.md) change how fast a GPU runs, never the result: "hopper tiles=128x64s3 section=16MiB" takes
 * tiles of 128 query rows and 64 keys in rings of 3 stages, and so on.
 * On failure *plan becomes NULL. */
FH_API fh_status fh_plan_create(const fh_problem* problem, const char* target, fh_plan** plan);
/* NULL: nothing happens. No thread may be in fh_plan_run with the plan; launches in flight and captured graphs do not
 * need it. */
FH_API void fh_plan_destroy(fh_plan* plan);
FH_API size_t fh_plan_workspace_bytes(const fh_plan* plan); /* of fh_plan_run; on the CPU 0 but for phases backward */
FH_API int fh_plan_on_gpu(const fh_plan* plan);             /* nonzero: tensors and workspace are GPU memory */
FH_API const char* fh_plan_line(const fh_plan* plan);       /* the plan as one line of text; lives as long as it */

/* workspace: 256-byte aligned, any content, on the GPU of the tensors; may be NULL if the plan needs 0 bytes.
 * stream: a CUstream or cudaStream_t; NULL is the legacy default stream. The CPU ignores it, and the call returns when
 * the result is there. tensors: the struct is read during the call, the memory that it names until the stream has done
 * the run. */
FH_API fh_status fh_plan_run(const fh_plan* plan, const fh_tensors* tensors, void* workspace, size_t workspace_bytes,
                             void* stream);

/* Finds the plan in a cache or makes it, then runs it. It needs the workspace that fh_workspace_bytes returns. */
FH_API fh_status fh_attention(const fh_problem* problem, const char* target, const fh_tensors* tensors,
                              void* workspace, size_t workspace_bytes, void* stream);
/* The workspace that fh_attention needs for the same problem and target if the tensors are on the current GPU. This
 * call makes the plan too, so the first run is as fast as the next. On failure *bytes becomes 0. */
FH_API fh_status fh_workspace_bytes(const fh_problem* problem, const char* target, size_t* bytes);

/* Reads a problem from a line such as "fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal". Initialise the struct with
 * fh_problem_init() first: the call reads its size. */
FH_API fh_status fh_problem_parse(const char* line, fh_problem* problem);
/* Writes a problem as one line of text, at most `bytes` characters including the closing zero; one that is refused has
 * none. *length becomes the line's length without the zero, unless NULL; line = NULL with bytes = 0 does only that. */
FH_API fh_status fh_problem_print(const fh_problem* problem, char* line, size_t bytes, size_t* length);

/* Lines of text that say how the target computes the problem (backend, kernel, tiles, memory), or why it cannot; no
 * newline follows the last one. They live until this thread calls fh_explain again. */
FH_API const char* fh_explain(const fh_problem* problem, const char* target);

/* Of this thread; valid until the failure after its next one; "" before the first. */
FH_API const char* fh_last_error(void);
FH_API const char* fh_status_name(fh_status status); /* "FH_OK" */
FH_API const char* fh_version(void);                 /* of the library, as "0.4.0" */

/* Your function for fh_set_log. line has no end of line; user is the pointer that fh_set_log got. */
typedef void (*fh_log_function)(const char* line, void* user);
/* Calls your function with a line for each plan that can run, each kernel that is compiled, and so on, from any thread,
 * also several at once; NULL turns the log off. When fh_set_log returns, no function that was set before runs or will
 * be called, unless your function itself called it. */
FH_API void fh_set_log(fh_log_function function, void* user);

/* For interpreters, whose SIGINT handler acts only after a call has returned. If wanted is nonzero and the process has
 * a handler for SIGINT, a call on the CPU by the first thread of the process returns FH_INTERRUPTED soon after SIGINT;
 * the handler is called too. With 0, the default, such a call runs to its end. */
FH_API void fh_watch_interrupts(int wanted);

#ifdef __cplusplus
}
#endif
#endif /* FROGHOPPER_FROGHOPPER_H_ */
