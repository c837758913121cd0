/* SPDX-License-Identifier: Apache-2.0
 *
 * froghopper.h - exact attention on NVIDIA Hopper GPUs and on the CPU: the C interface.
 *
 *   O = softmax(scale Q K^T + mask) V, and the gradients of Q, K and V
 *
 *   describe   fh_problem p = fh_problem_init(); p.batch = 2; ...       shapes and options, no pointers
 *   plan       fh_plan_create(&p, NULL, &plan);                         picks backend, kernel, tiles, workspace
 *   run        fh_plan_run(plan, &tensors, workspace, bytes, stream);   on a GPU: asynchronous, graph-capturable
 *   forget     fh_plan_destroy(plan);
 *   or         fh_attention(&p, NULL, &tensors, workspace, bytes, stream);   the same in one call, plans cached
 *
 * Conventions
 *   (1) Shapes read [batch, seq, heads, dim]. Strides are int64_t and count elements. The stride of dim is 1.
 *   (2) Calls that can fail return fh_status. fh_last_error() explains the last failure on this thread. A call that
 *       fails has launched nothing and written nothing, whatever the status. One exception: where a plan is several
 *       launches (gradients on a GPU) and the driver refuses a later one, FH_LAUNCH_FAILED leaves what is written
 *       undefined.
 *   (3) A struct starts with its own size; fh_problem_init() and fh_tensors_init() set it. New fields are only ever
 *       appended, without gaps, and zero means "as before": a type of 0 is that of q, a tensor of NULL is not there, a
 *       flag of 0 is off. Compile with the header of the library you run, or an older one.
 *   (4) The library never prints, never exits, never allocates device memory, never synchronises a stream.
 *   (5) A plan is immutable. Any number of threads may run it at once, each with its own workspace.
 *   (6) Every row of o and lse that the shapes name is written, also rows of no sequence. A query row that sees no key
 *       gets o = 0 and lse = -inf; where its head has a sink, lse is the sink, since the denominator holds it. Rows of
 *       no sequence get o = 0 and lse = -inf. Nothing else is written.
 *       With accumulate o and lse are the attention over the keys of earlier calls, and become that over these keys
 *       too; rows that see no key and rows of no sequence stay as they are. Begin with o = 0 and lse = -inf, or the
 *       head's sink. Where lse is -inf and the row sees a key, o is not read. max_logit becomes the larger one of what
 *       it holds and what these keys give; begin with -inf.
 *   (7) Memory that no visible key or query occupies (padding, rows past a sequence's end) may hold anything, NaN too,
 *       also in o, lse, grad_o and grad_lse where they are read.
 *   (8) A backward problem (FH_BACKWARD) reads q, k, v, grad_o, and the o and lse that a forward problem gave for the
 *       same description. It writes every row of grad_q, grad_k and grad_v that the shapes name: 0 for rows that see no
 *       key, keys that no row sees, and rows of no sequence. With accumulate it adds to what is there instead, and o
 *       and lse are those of all keys, of which this problem may have some. Nothing else is written.
 *   (9) A quantise problem (FH_QUANTISE) reads q, k and v and writes quantised_q, quantised_k and quantised_v, in 8
 *       bits, with scale_q, scale_k and scale_v, as a forward problem of that type takes them. Each of the three may be
 *       left out, with its copy, its scales and its mean. Rows of no sequence are not written; every scale and mean
 *       that the shapes name is: 1 for blocks without rows, 0 for sequences without. Entries are finite.
 *  (10) docs/1-math.md, section 1.6, has a table of what options mean at the ends of fp32's range. In short: an
 *       infinite sink, merged lse or slope means a very large one, and NaN in one gives NaN to its head or row alone.
 *  (11) A tensor that is written, and the workspace, share no byte with any other tensor: FH_INVALID_TENSOR otherwise.
 *       Every row that the shapes name counts, also one past a sequence's end. Slices of a buffer may lie between each
 *       other: q, k, v and o in the columns of a tensor share nothing. Tensors with unlike strides that cannot be told
 *       apart in a few thousand steps are refused too. What is only read may overlap, k and v may be the same.
 *  (12) An append problem (FH_APPEND) reads q, k and v, whose rows are new, and writes q_out and rows of cache_k and
 *       cache_v: docs/13-serving.md. Each of q, k and v may be left out, with what is written of it; q_out may be q. No
 *       two rows go to one place. Rows without a place, rows of no sequence and all other memory stay as they are.
 *  (13) docs/12-using.md, "Versions", says what stays as it is from version to version.
 */
#ifndef FROGHOPPER_FROGHOPPER_H_
#define FROGHOPPER_FROGHOPPER_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FH_VERSION_MAJOR 0 /* of this header; fh_version() is that of the library which runs */
#define FH_VERSION_MINOR 4 /* before 1.0 a new one may change the interface */
#define FH_VERSION_PATCH 0 /* a new one changes nothing of it */
/* The version as one number, to compare with: of 0.4.0 it is 400, of 1.2.3 it is 10203. */
#define FH_VERSION (FH_VERSION_MAJOR * 10000 + FH_VERSION_MINOR * 100 + FH_VERSION_PATCH)

#if defined(__GNUC__)
#define FH_API __attribute__((visibility("default"))) /* what the library shows */
#else
#define FH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* How a problem is computed, and where. */
typedef struct fh_plan fh_plan;

/* What a call returns. */
typedef enum fh_status {
  FH_OK = 0,
  FH_INVALID_PROBLEM = 1, /* the description contradicts itself, or the target names nothing */
  FH_UNSUPPORTED = 2,     /* consistent, but nothing on the chosen backend computes it */
  FH_INVALID_TENSOR = 3,  /* a pointer, stride, alignment or workspace does not match the plan */
  FH_NO_DEVICE = 4,       /* no Hopper GPU, no driver, or one that is too old */
  FH_COMPILE_FAILED = 5,  /* a kernel could not be compiled or loaded */
  FH_LAUNCH_FAILED = 6,   /* the driver refused the launch */
  FH_INTERNAL = 7,        /* out of host memory or threads, or a bug in the library */
  FH_INTERRUPTED = 8      /* SIGINT came, see fh_watch_interrupts; what was to be written is undefined */
} fh_status;

/* What is computed. */
typedef enum fh_op { FH_FORWARD = 1, FH_BACKWARD = 2, FH_QUANTISE = 3, FH_APPEND = 4 } fh_op;

/* f32: CPU only. e4m3 (largest number 448, no infinity) and e5m2 (57344): one byte a number, which a scale goes with;
 * forward only. */
typedef enum fh_dtype {
  FH_USUAL = 0, /* of dtype_kv and dtype_o: what follows from dtype */
  FH_F16 = 1,
  FH_BF16 = 2,
  FH_F32 = 3,
  FH_E4M3 = 4,
  FH_E5M2 = 5
} fh_dtype;

/* What a mask is aligned to when there are more keys than queries, or fewer. */
typedef enum fh_align {
  FH_BOTTOM_RIGHT = 0, /* the last query sees the last key: query i is level with key i + seq_kv - seq_q */
  FH_TOP_LEFT = 1      /* the first query sees the first key: query i is level with key i */
} fh_align;

#define FH_ALL INT64_C(-1) /* a window without a bound on that side */

/* Start from fh_problem_init(), not from zeros: a window of 0 keys is a window, FH_ALL is none. */
typedef struct fh_problem {
  size_t size; /* sizeof(fh_problem) */

  /* What is computed. */
  fh_op op;
  fh_dtype dtype;            /* of q, k, v, o and their gradients; of an 8-bit type o is another: dtype_o */
  int64_t batch;             /* sequences; fh_problem_init sets 1. 0 is legal and computes nothing */
  int64_t heads_q;           /* at least 1 */
  int64_t heads_kv;          /* at least 1, divides heads_q: query head h reads key head h / (heads_q / heads_kv) */
  int64_t seq_q, seq_kv;     /* rows of every sequence; with varlen, an upper bound on the longest one's */
  int64_t dim_qk;            /* columns of q and k: a multiple of 8 from 8 to 512; with 8-bit types of 16, to 256 */
  int64_t dim_v;             /* columns of v and o, likewise; 0 means dim_qk */
  int64_t total_q, total_kv; /* varlen only: rows of the packed q and of the packed k and v */
  int32_t varlen;            /* nonzero: sequences lie end to end in [1, total, heads, dim]; cu_seqlens say where */
  int32_t seqused;           /* nonzero: seqused_q or seqused_kv give how many rows of a sequence count */
  int32_t causal;            /* nonzero: the same as window_right = 0 */
  fh_align align;            /* of causal, window, attention_chunk and alibi */
  int64_t window_left;       /* keys a query sees before the one it is level with; FH_ALL: no bound */
  int64_t window_right;      /* keys a query sees after it; FH_ALL: no bound */
  float scale;               /* of q k^T, at most 2^127; 0 means 1/sqrt(dim_qk), -0.0f a scale of zero */
  float softcap;             /* scores become softcap tanh(score / softcap); 0 means none; on a GPU at most 2^15 */
  int32_t sink;              /* nonzero: tensors.sink holds one more logit a head, in the denominator alone */

  /* How it may be computed. These never change the result beyond rounding. */
  int32_t deterministic; /* nonzero: bit-equal from run to run (forward always is) */
  int64_t max_sms;       /* SMs (GPU) or threads (CPU) it may occupy; 0 means all */

  /* What is computed, continued: fields keep their places, so those that came later stand after others. */
  int32_t
      accumulate; /* nonzero: gradients are added to what grad_q, grad_k, grad_v and grad_sink hold; grad_q, grad_k and
                         grad_v are f32 then. Forward: o and lse are merged with what they hold, see (6); o is f32
                         then. No sink there: it would be in the denominator once a call */
  int32_t alibi;  /* nonzero: the score of query i and key j gets -slope |i + d - j| on top, after scale and softcap;
                         tensors.alibi_slopes has a slope for each query head, d is seq_kv - seq_q or by align 0 */

  /* 8-bit types. A number that is stored stands for itself times its scale: tensors.scale_q, scale_k, scale_v. */
  fh_dtype dtype_kv;  /* of k and v; FH_USUAL: dtype. With q in f16 or bf16, k and v may be 8-bit */
  fh_dtype dtype_o;   /* of o; FH_USUAL: dtype, or bf16 where that is an 8-bit type. f16, bf16 or f32 where k and v
                              are 8-bit, else dtype. Forward with accumulate: f32 */
  int64_t scale_rows; /* rows of a sequence that share a scale, counted from its first row: 128; 0: all of them */
  int32_t scale_v_columns; /* nonzero: v has a scale for each column instead, over all rows of a sequence */

  /* How it may be computed, continued. This never changes the result beyond rounding. */
  int32_t invariant; /* forward only. Nonzero: a row of o and lse has the same bits whatever batch, bounds, max_sms
                              and other rows it is computed with; docs/1-math.md. This place was always 0 before */

  /* Quantise only. There dtype is of q, k and v, which are read, and dtype_kv the 8-bit type of what is written. */
  int32_t rotate; /* nonzero: q and k are multiplied by an orthogonal matrix first, a Hadamard matrix with random
                           signs, so that q k^T stays as it is and outliers are spread over their row */
  uint32_t rotate_seed; /* of the signs; q and k of one attention need the same */

  /* 8-bit k and v. */
  int32_t smooth; /* nonzero: a quantise problem takes the mean of all rows of a sequence out of k and v and writes
                        it to mean_k and mean_v; a forward problem reads these and adds them */

  /* What is computed, continued. */
  int32_t max_logit; /* forward only. Nonzero: tensors.max_logit gets the largest score of each sequence and query
                           head. This place was always 0 before */
  int64_t
      attention_chunk; /* keys lie in chunks of so many, from key 0 on; a query sees those of the chunk alone that it
                              is level with, by align, and of these what causal and window leave. 0: none */

  /* Paged K and V, forward only. A sequence's row r lies in row r % page_size of the page that tensors.block_table
   * names for r / page_size. With varlen, q alone is packed: total_kv is 0, and there is no cu_seqlens_kv. Each
   * sequence has seq_kv rows, or with seqused as many as seqused_kv says. */
  int64_t page_size; /* rows of a page; 0: k and v are not in pages */
  int64_t pages;     /* of the pool that k and v are then */

  /* Append only. There dtype is of q, k, v and q_out, whose rows are seq_q, and dtype_kv of the cache, FH_USUAL or
   * 8-bit; seq_kv are the rows of a sequence in it, and page_size and pages say how it lies. Row i of sequence b goes
   * to its row seqused_kv[b] + i, or i without seqused_kv. */
  int32_t slots;       /* nonzero: tensors.slot_mapping says where rows go, and sequences do not matter: no varlen
                                 or seqused, and with page_size seq_kv is 0 */
  int32_t positions;   /* nonzero: tensors.positions says where rows are in their sequences, for rotary_dim; else
                                 that follows from where they go */
  int64_t rotary_dim;  /* columns of q and k that are rotated, the first ones: even; 0: none */
  int64_t rotary_rows; /* positions that rotary_cos and rotary_sin know, from 0 on */
  int32_t rotary_interleaved; /* nonzero: columns 2i and 2i + 1 are a pair; 0: i and i + rotary_dim / 2 are */
  int32_t norm;               /* nonzero: before the rotation, rows of q and k are divided by the root of the mean of
                                 their squares plus norm_epsilon, and multiplied by norm_q and norm_k */
  float norm_epsilon;
  int32_t scale_tokens;  /* 8-bit caches; nonzero: each row of k and of v in the cache gets a scale of its own, which
                            is written; 0: all rows have those of scale_k and scale_v, which are read */
  fh_dtype dtype_rotary; /* of rotary_cos and rotary_sin; dtype (FH_USUAL says that too) or FH_F32 */
  fh_dtype dtype_norm;   /* of norm_q and norm_k; likewise */
} fh_problem;

/* A forward problem in bf16 without mask: every other field 0, windows FH_ALL. */
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

/* A tensor of the caller's, [batch, seq, heads, dim]. */
typedef struct fh_tensor {
  void* data;                                    /* of its first element */
  int64_t stride_batch, stride_seq, stride_head; /* elements; stride_batch is ignored with varlen */
} fh_tensor;

/* Host memory for a plan on the CPU, memory of one GPU for a plan on Hopper; there q, k, v, o and
 * their gradients are 16-byte aligned and the strides of extents above 1 are multiples of 16 bytes. */
typedef struct fh_tensors {
  size_t size; /* sizeof(fh_tensors) */
  fh_tensor q; /* [batch, seq_q, heads_q, dim_qk]; varlen [total_q, heads_q, dim_qk]. Read. */
  fh_tensor k; /* [batch, seq_kv, heads_kv, dim_qk]; varlen [total_kv, ...]. Read. page_size: the pool,
                                  [pages, page_size, heads_kv, dim_qk], stride_batch steps over pages. */
  fh_tensor v; /* [batch, seq_kv, heads_kv, dim_v]; varlen [total_kv, ...]. Read. page_size: as k. */
  fh_tensor o; /* [batch, seq_q, heads_q, dim_v]; varlen [total_q, ...]. Written; backward: read;
                                  forward with accumulate: merged. */
  float* lse;  /* natural log of the softmax denominator, sink included: [batch, heads_q, seq_q],
                                  varlen [heads_q, total_q], dense. Written, may be NULL; backward: read;
                                  forward with accumulate: merged. */
  const int32_t* cu_seqlens_q; /* varlen: [batch + 1], 0 and then the end of each sequence, rising; else NULL. The CPU
                                  checks them; a GPU plan cannot, so there they must be right. */
  const int32_t* cu_seqlens_kv; /* the same of k and v */
  const int32_t*
      seqused_q; /* seqused: [batch], rows of a sequence that count, at most all; NULL: all of them. FH_BOTTOM_RIGHT
                               aligns the last row of q that counts with the last key that counts. So with a mask, where
                               rows of q are padding too, give both lengths, or use FH_TOP_LEFT. */
  const int32_t* seqused_kv; /* the same of k and v. FH_APPEND: rows that are there before the new ones */
  const float* sink;         /* sink: [heads_q]; else NULL. -inf: that head has none; +inf: lse is +inf and o is 0 */

  /* Backward only, else NULL. */
  fh_tensor grad_o;                 /* shape of o. Read. */
  fh_tensor grad_q, grad_k, grad_v; /* shapes of q, k and v. Written; accumulate: added to, and f32. */
  const float* grad_lse;            /* shape of lse. Read; NULL: lse has no gradient. */
  float* grad_sink;                 /* sink: [heads_q]. Written; accumulate: added to. */

  /* 8-bit types only, else NULL: f32, what the numbers of q, k and v are multiplied by. Read, by a quantise problem
   * written; 2^-126 to 2^126, which the CPU checks and a GPU plan cannot. `batch` counts sequences, also with
   * varlen, and stride_batch is used there too. blocks: ceil(seq / scale_rows), or 1 where scale_rows is 0; stride_seq
   * steps over them. A stride of 0 says that all share a scale: one for the tensor has three of them. Blocks past a
   * sequence's last row that counts are not read. */
  fh_tensor scale_q; /* [batch, blocks of seq_q, heads_q, 1] */
  fh_tensor scale_k; /* [batch, blocks of seq_kv, heads_kv, 1] */
  fh_tensor scale_v; /* [batch, blocks of seq_kv, heads_kv, 1]; scale_v_columns: [batch, 1, heads_kv, dim_v] */

  /* Quantise only, else NULL. */
  fh_tensor quantised_q, quantised_k, quantised_v; /* shapes of q, k and v, in dtype_kv. Written. */

  /* smooth only, else NULL: f32, finite, what every row of a sequence's k and v has beside its stored numbers times
   * their scales; of rotated k, rotated. Read, by a quantise problem written, 0 for sequences without rows. batch and
   * stride_batch as of scales. */
  fh_tensor mean_k; /* [batch, 1, heads_kv, dim_qk] */
  fh_tensor mean_v; /* [batch, 1, heads_kv, dim_v] */

  /* alibi only, else NULL: f32 [batch, 1, heads_q, 1], with strides as scales have them: a stride_batch of 0 says that
   * all sequences have the same. Beyond 1.2e27 they count as that. Read; the slopes have no gradients. */
  fh_tensor alibi_slopes;

  /* max_logit only, else NULL: [batch, heads_q], dense; batch counts sequences, also with varlen. The largest score
   * that a row of the sequence gives a key which it sees, as the softmax has it: after scale, softcap and alibi, in
   * natural units; the sink is none. -inf where no row sees a key. A score that is NaN does not count. Written; with
   * accumulate: merged, see (6). */
  float* max_logit;

  /* page_size only, else NULL: int32 [batch, ceil(seq_kv / page_size)], the page of the pool that holds a sequence's
   * rows from column x page_size on; stride_batch steps over sequences, stride_seq over columns. Only columns that hold
   * rows that count are read; the others may hold anything. Two sequences may name the same page. The CPU checks the
   * numbers; a GPU plan cannot, so there they must be from 0 to pages - 1. */
  fh_tensor block_table;

  /* Append only, else NULL. k and v have the rows of q there, [batch, seq_q, heads_kv, dim], scale_k and scale_v are
   * [1, 1, heads_kv, 1]; with scale_tokens they are written and have the rows of the cache, [batch or pages, rows,
   * heads_kv, 1]. What is stored is a number divided by its scale. */
  fh_tensor cache_k; /* [batch, seq_kv, heads_kv, dim_qk]; page_size: [pages, page_size, heads_kv, dim_qk]. Some rows
                                 are written; the strides say in which order batch, seq and heads lie. */
  fh_tensor cache_v; /* the same with dim_v */
  fh_tensor q_out;   /* shape of q; or q itself, with its strides. Written. */
  const int64_t* slot_mapping; /* slots: [batch, seq_q], dense: row s % page_size of page s / page_size, without
                                 page_size row s % seq_kv of sequence s / seq_kv; below 0: k and v of this row are not
                                 written. The CPU refuses what lies past the cache; a GPU plan does not write it. */
  const int64_t* positions; /* positions: [batch, seq_q], dense, varlen [total_q]. Below rotary_rows; outside of that
                                 the CPU refuses them, and a GPU plan does not write that row of q and k. */
  fh_tensor rotary_cos, rotary_sin; /* rotary_dim: [1, rotary_rows, 1, rotary_dim / 2]. Read. */
  fh_tensor norm_q, norm_k;         /* norm: [1, 1, 1, dim_qk]; NULL: all 1. Read. */
} fh_tensors;

static inline fh_tensors fh_tensors_init(void) {
  fh_tensors t;
  memset(&t, 0, sizeof t);
  t.size = sizeof t;
  return t;
}

/* target: where it shall run.
 *   NULL or "auto"   the current Hopper GPU where there is one and it computes this problem, else the CPU;
 *                    fh_plan_on_gpu tells which, fh_explain why. In fh_attention the tensors decide: the GPU that holds
 *                    them, or the CPU where they are host memory
 *   "hopper"         the current Hopper GPU, or a refusal; "hopper:1" for GPU 1
 *   "cpu"            this machine's CPU
 *   "h200"           a GPU that need not be here: the plan can be read, not run. "h100", or one of your own with its
 *                    numbers: "mine 64sm l2=40MiB clock=1500MHz memory=2000GB/s"
 * Hints after it change how fast a GPU runs, never the result: "hopper tiles=128x64s3 section=16MiB tail=30% late=8"
 * takes tiles of 128 query rows and 64 keys in rings of 3 stages, and so on; packed= and parts= are for few query rows
 * and few tiles, widened= is for 8-bit k and v beside 16-bit q; docs/4-planning.md. */
FH_API fh_status fh_plan_create(const fh_problem* problem, const char* target, fh_plan** plan);
FH_API void fh_plan_destroy(fh_plan* plan);                 /* NULL: nothing happens */
FH_API size_t fh_plan_workspace_bytes(const fh_plan* plan); /* what fh_plan_run needs; 0 on the CPU */
FH_API int fh_plan_on_gpu(const fh_plan* plan);             /* nonzero: tensors and workspace are GPU memory */
FH_API const char* fh_plan_line(const fh_plan* plan);       /* one line of text; lives as long as the plan */

/* workspace: 256-byte aligned, any content, on the tensors' GPU; may be NULL where the plan needs 0 bytes.
 * stream: a CUstream or cudaStream_t; ignored on the CPU, where the call returns when the result is there. */
FH_API fh_status fh_plan_run(const fh_plan* plan, const fh_tensors* tensors, void* workspace, size_t workspace_bytes,
                             void* stream);

/* Finds or makes the plan, then runs it. It needs as much workspace as fh_workspace_bytes says. */
FH_API fh_status fh_attention(const fh_problem* problem, const char* target, const fh_tensors* tensors,
                              void* workspace, size_t workspace_bytes, void* stream);
/* What fh_attention needs for the same problem and target, as if the tensors were on the current GPU. This makes the
 * plan too, so the first run is as quick as the next. */
FH_API fh_status fh_workspace_bytes(const fh_problem* problem, const char* target, size_t* bytes);

/* One line of text as a problem, e.g. "fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal". The struct holds its size
 * already, so: fh_problem p = fh_problem_init(); */
FH_API fh_status fh_problem_parse(const char* line, fh_problem* problem);
/* A problem as one line of text: at most bytes characters with the closing zero. *length, if length is not NULL, is how
 * long the whole line is without it; with line = NULL and bytes = 0 that is all it does. */
FH_API fh_status fh_problem_print(const fh_problem* problem, char* line, size_t bytes, size_t* length);

/* Why the problem can or cannot be computed there and how, in lines of text: backends, kernel, tiles, memory. Lives
 * until this thread's next call of it. */
FH_API const char* fh_explain(const fh_problem* problem, const char* target);

FH_API const char* fh_last_error(void); /* of this thread; valid until its next failing call; "" before the first */
FH_API const char* fh_status_name(fh_status status); /* "FH_OK" */
FH_API const char* fh_version(void);                 /* of the library, as "0.4.0" */

/* A function of yours that fh_set_log is given. line: without an end of line; user: what fh_set_log was given. */
typedef void (*fh_log_function)(const char* line, void* user);
/* What the library does (plans made, kernels compiled), one line a message, to your function; NULL turns it off.
 * Your function may be called from any thread, also from several at once. When fh_set_log returns, no function that
 * was set before is running any more or will be called again, whichever thread has replaced it. Called from inside such
 * a function, which cannot wait for itself, fh_set_log waits for none. */
FH_API void fh_set_log(fh_log_function function, void* user);

/* For interpreters, whose handler of SIGINT acts only when a call has returned. With wanted nonzero, a call on the CPU
 * that the process's first thread makes returns FH_INTERRUPTED soon after SIGINT, where the process has a handler for
 * it, which is called too. 0, as at first: such a call runs to its end. */
FH_API void fh_watch_interrupts(int wanted);

#ifdef __cplusplus
}
#endif
#endif /* FROGHOPPER_FROGHOPPER_H_ */
