// SPDX-License-Identifier: Apache-2.0
// froghopper.hpp - exact attention on NVIDIA Hopper GPUs and on the CPU: the C++20 interface.
//
//   froghopper::Plan plan({.batch = 2, .heads_q = 16, .heads_kv = 4, .seq_q = 4096, .seq_kv = 4096, .dim_qk = 128,
//                          .causal = true});
//   plan.run({.q = froghopper::dense(q, 4096, 16, 128), .k = ..., .v = ..., .o = ...}, workspace, workspace_bytes,
//            stream);
//
// A thin skin over froghopper.h, which has the meaning of every field and the conventions. Header-only, so that no C++
// type ever crosses the border of the library. What fails throws froghopper::Error; nothing was launched then.
#ifndef FROGHOPPER_FROGHOPPER_HPP_
#define FROGHOPPER_FROGHOPPER_HPP_

#if __cplusplus < 201709L  // what GCC 10 says with -std=c++20
#error "froghopper.hpp is C++20: compile with -std=c++20 or newer, or use froghopper.h, which is C."
#endif

#if !defined(__cpp_exceptions)
#error "froghopper.hpp throws what fails: compile with exceptions, or use froghopper.h, which returns a status."
#endif

#include <froghopper/froghopper.h>

#include <bit>
#include <memory>
#include <stdexcept>
#include <string>

namespace froghopper {
// The version is part of every symbol's name: programs made with different headers do not mix these types up.
inline namespace v0_4 {

// What fails throws it: what() is fh_last_error().
class Error : public std::runtime_error {
 public:
  // text: copied.
  Error(fh_status status, const char* text) : std::runtime_error(text), status_(status) {}
  fh_status status() const noexcept { return status_; }  // which kind of failure

 private:
  fh_status status_;
};

// Throws where a call of the C interface failed, on the thread that called it.
inline void must(fh_status status) {
  if (status != FH_OK) throw Error(status, fh_last_error());
}

// fh_op.
enum class Op { forward = FH_FORWARD, backward = FH_BACKWARD, quantise = FH_QUANTISE, append = FH_APPEND };
// fh_dtype.
enum class Dtype { usual = FH_USUAL, f16 = FH_F16, bf16 = FH_BF16, f32 = FH_F32, e4m3 = FH_E4M3, e5m2 = FH_E5M2 };
// fh_align.
enum class Align { bottom_right = FH_BOTTOM_RIGHT, top_left = FH_TOP_LEFT };
// fh_phase.
enum class Phase {
  none = FH_PHASE_NONE,
  first = FH_PHASE_FIRST,
  middle = FH_PHASE_MIDDLE,
  last = FH_PHASE_LAST,
  only = FH_PHASE_ONLY
};
inline constexpr int64_t all = FH_ALL;  // a window without a bound on that side

// What is computed: shapes and options, no pointers. heads, rows and dim_qk have no default: 0 heads are refused.
// C++ wants designators in this order, which is not that of fh_problem.
struct Problem {
  Op op = Op::forward;
  Dtype dtype = Dtype::bf16;
  int64_t batch = 1;
  int64_t heads_q = 0, heads_kv = 0;
  int64_t seq_q = 0, seq_kv = 0;
  int64_t dim_qk = 0;
  int64_t dim_v = 0;  // 0: dim_qk
  bool varlen = false;
  int64_t total_q = 0, total_kv = 0;
  bool seqused = false;
  bool causal = false;
  Align align = Align::bottom_right;
  int64_t window_left = all, window_right = all;
  float scale = 0;    // 0: 1/sqrt(dim_qk); -0.0f: zero. A float: what is below 7e-46 is 0 in it
  float softcap = 0;  // 0: none
  bool sink = false;
  bool deterministic = false;
  int64_t max_sms = 0;  // 0: all
  bool accumulate = false;
  Dtype dtype_kv = Dtype::usual;  // that of q
  Dtype dtype_o = Dtype::usual;   // that of q, or bf16 where that is an 8-bit type
  int64_t scale_rows = 0;         // 8-bit types: 128; 0: all rows of a sequence share a scale
  bool scale_v_columns = false;
  bool rotate = false;  // of a quantise problem: q and k
  uint32_t rotate_seed = 0;
  bool smooth = false;  // of 8-bit k and v
  bool alibi = false;
  int64_t attention_chunk = 0;  // 0: none
  bool invariant = false;       // forward: a row's bits do not depend on what it is computed with
  bool max_logit = false;       // forward: the largest score of each sequence and query head is written too
  int64_t page_size = 0;        // rows of a page of k and v; 0: they are not in pages
  int64_t pages = 0;            // of the pool
  bool slots = false;           // these of an append problem
  bool positions = false;
  int64_t rotary_dim = 0, rotary_rows = 0;
  bool rotary_interleaved = false;
  bool norm = false;
  float norm_epsilon = 0;
  bool scale_tokens = false;
  Dtype dtype_rotary = Dtype::usual, dtype_norm = Dtype::usual;
  bool gate = false;  // o is multiplied by the sigmoid of a tensor
  Phase phase = Phase::none;

  bool operator==(const Problem&) const = default;  // field by field
};

// The same for the C interface.
inline fh_problem to_c(const Problem& problem) {
  fh_problem p = fh_problem_init();
  p.op = static_cast<fh_op>(problem.op), p.dtype = static_cast<fh_dtype>(problem.dtype);
  p.batch = problem.batch, p.heads_q = problem.heads_q, p.heads_kv = problem.heads_kv;
  p.seq_q = problem.seq_q, p.seq_kv = problem.seq_kv;
  p.dim_qk = problem.dim_qk, p.dim_v = problem.dim_v;
  p.varlen = problem.varlen, p.total_q = problem.total_q, p.total_kv = problem.total_kv;
  p.seqused = problem.seqused, p.causal = problem.causal, p.align = static_cast<fh_align>(problem.align);
  p.window_left = problem.window_left, p.window_right = problem.window_right;
  p.scale = problem.scale, p.softcap = problem.softcap;
  p.sink = problem.sink, p.deterministic = problem.deterministic, p.max_sms = problem.max_sms;
  p.accumulate = problem.accumulate;
  p.dtype_kv = static_cast<fh_dtype>(problem.dtype_kv), p.dtype_o = static_cast<fh_dtype>(problem.dtype_o);
  p.scale_rows = problem.scale_rows, p.scale_v_columns = problem.scale_v_columns;
  p.rotate = problem.rotate, p.rotate_seed = problem.rotate_seed;
  p.smooth = problem.smooth, p.alibi = problem.alibi, p.attention_chunk = problem.attention_chunk;
  p.invariant = problem.invariant, p.max_logit = problem.max_logit;
  p.page_size = problem.page_size, p.pages = problem.pages;
  p.slots = problem.slots, p.positions = problem.positions;
  p.rotary_dim = problem.rotary_dim, p.rotary_rows = problem.rotary_rows;
  p.rotary_interleaved = problem.rotary_interleaved;
  p.norm = problem.norm, p.norm_epsilon = problem.norm_epsilon, p.scale_tokens = problem.scale_tokens;
  p.dtype_rotary = static_cast<fh_dtype>(problem.dtype_rotary);
  p.dtype_norm = static_cast<fh_dtype>(problem.dtype_norm);
  p.gate = problem.gate, p.phase = static_cast<fh_phase>(problem.phase);
  return p;
}

// The same as a Problem.
inline Problem to_cpp(const fh_problem& p) {
  return {.op = static_cast<Op>(p.op),
          .dtype = static_cast<Dtype>(p.dtype),
          .batch = p.batch,
          .heads_q = p.heads_q,
          .heads_kv = p.heads_kv,
          .seq_q = p.seq_q,
          .seq_kv = p.seq_kv,
          .dim_qk = p.dim_qk,
          .dim_v = p.dim_v,
          .varlen = p.varlen != 0,
          .total_q = p.total_q,
          .total_kv = p.total_kv,
          .seqused = p.seqused != 0,
          .causal = p.causal != 0,
          .align = static_cast<Align>(p.align),
          .window_left = p.window_left,
          .window_right = p.window_right,
          .scale = p.scale,
          .softcap = p.softcap,
          .sink = p.sink != 0,
          .deterministic = p.deterministic != 0,
          .max_sms = p.max_sms,
          .accumulate = p.accumulate != 0,
          .dtype_kv = static_cast<Dtype>(p.dtype_kv),
          .dtype_o = static_cast<Dtype>(p.dtype_o),
          .scale_rows = p.scale_rows,
          .scale_v_columns = p.scale_v_columns != 0,
          .rotate = p.rotate != 0,
          .rotate_seed = p.rotate_seed,
          .smooth = p.smooth != 0,
          .alibi = p.alibi != 0,
          .attention_chunk = p.attention_chunk,
          .invariant = p.invariant != 0,
          .max_logit = p.max_logit != 0,
          .page_size = p.page_size,
          .pages = p.pages,
          .slots = p.slots != 0,
          .positions = p.positions != 0,
          .rotary_dim = p.rotary_dim,
          .rotary_rows = p.rotary_rows,
          .rotary_interleaved = p.rotary_interleaved != 0,
          .norm = p.norm != 0,
          .norm_epsilon = p.norm_epsilon,
          .scale_tokens = p.scale_tokens != 0,
          .dtype_rotary = static_cast<Dtype>(p.dtype_rotary),
          .dtype_norm = static_cast<Dtype>(p.dtype_norm),
          .gate = p.gate != 0,
          .phase = static_cast<Phase>(p.phase)};
}

// One line of text and back, e.g. "fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal". What is read has every default
// filled in, except for Dtype::usual.
inline Problem parse(const std::string& line) {
  fh_problem p = fh_problem_init();
  must(fh_problem_parse(line.c_str(), &p));
  return to_cpp(p);
}

// A problem as one line of text, which parse() reads. Throws where the problem is refused.
inline std::string print(const Problem& problem) {
  const fh_problem p = to_c(problem);
  size_t length = 0;
  must(fh_problem_print(&p, nullptr, 0, &length));
  std::string line(length, ' ');
  must(fh_problem_print(&p, line.data(), length + 1, nullptr));
  return line;
}

using Tensor = fh_tensor;  // data, and strides in elements: stride_batch, stride_seq, stride_head

// A tensor without gaps: [batch, seq, heads, dim], or packed [total, heads, dim]. What has heads before rows, as
// PyTorch's own attention does, takes dense_by_head(): a struct of pointers and strides has no shape that could show
// the mistake.
template <class T>
Tensor dense(const T* data, int64_t seq, int64_t heads, int64_t dim) {
  return {const_cast<T*>(data), seq * heads * dim, heads * dim, dim};  // q, k and v are read only
}

// The same with heads before rows in memory: [batch, heads, seq, dim].
template <class T>
Tensor dense_by_head(const T* data, int64_t seq, int64_t heads, int64_t dim) {
  return {const_cast<T*>(data), heads * seq * dim, dim, seq * dim};
}

// fh_tensors, field by field, with a default for each: a C struct has none.
struct Tensors {
  size_t size = sizeof(fh_tensors);
  Tensor q{}, k{}, v{}, o{};
  float* lse = nullptr;
  const int32_t *cu_seqlens_q = nullptr, *cu_seqlens_kv = nullptr;
  const int32_t *seqused_q = nullptr, *seqused_kv = nullptr;
  const float* sink = nullptr;
  Tensor grad_o{}, grad_q{}, grad_k{}, grad_v{};  // a backward problem's, as the rest
  const float* grad_lse = nullptr;
  float* grad_sink = nullptr;
  Tensor scale_q{}, scale_k{}, scale_v{};              // of 8-bit types
  Tensor quantised_q{}, quantised_k{}, quantised_v{};  // a quantise problem's
  Tensor mean_k{}, mean_v{};                           // with smooth
  Tensor alibi_slopes{};
  float* max_logit = nullptr;            // of a problem with max_logit
  Tensor block_table{};                  // of a problem with page_size: int32
  Tensor cache_k{}, cache_v{}, q_out{};  // an append problem's, as the rest
  const int64_t *slot_mapping = nullptr, *positions = nullptr;
  Tensor rotary_cos{}, rotary_sin{}, norm_q{}, norm_k{};
  Tensor gate{}, grad_gate{};  // of a problem with gate; a backward problem's
  std::int64_t lse_stride_batch = 0, lse_stride_seq = 0,
               lse_stride_head = 0;  // all 0: [batch, heads_q, seq_q], dense
  Tensor o_sum{};                    // of a forward problem with phase
};
static_assert(sizeof(Tensors) == sizeof(fh_tensors), "a field of fh_tensors is missing in Tensors");

// The same for the C interface.
inline fh_tensors to_c(const Tensors& tensors) { return std::bit_cast<fh_tensors>(tensors); }

// How it is computed. Immutable; holds no GPU memory. Any number of threads may run it, each with its own workspace.
class Plan {
 public:
  // target: as fh_plan_create has it.
  explicit Plan(const Problem& problem, const char* target = nullptr) {
    const fh_problem p = to_c(problem);
    fh_plan* plan = nullptr;
    must(fh_plan_create(&p, target, &plan));
    plan_.reset(plan);
  }

  size_t workspace_bytes() const { return fh_plan_workspace_bytes(plan_.get()); }  // what run() needs
  bool on_gpu() const { return fh_plan_on_gpu(plan_.get()) != 0; }                 // so are tensors and workspace
  std::string line() const { return fh_plan_line(plan_.get()); }                   // "PROBLEM -> KERNELS"

  // workspace and stream: as fh_plan_run has them.
  void run(const Tensors& tensors, void* workspace = nullptr, size_t workspace_bytes = 0,
           void* stream = nullptr) const {
    const fh_tensors t = to_c(tensors);
    must(fh_plan_run(plan_.get(), &t, workspace, workspace_bytes, stream));
  }

 private:
  struct Forget {
    void operator()(fh_plan* plan) const { fh_plan_destroy(plan); }
  };
  std::unique_ptr<fh_plan, Forget> plan_;
};

// The same in one call; the plan is found in a cache. The strides of the tensors say whether rows or heads come first,
// see dense() and dense_by_head().
inline void attention(const Problem& problem, const Tensors& tensors, const char* target = nullptr,
                      void* workspace = nullptr, size_t workspace_bytes = 0, void* stream = nullptr) {
  const fh_problem p = to_c(problem);
  const fh_tensors t = to_c(tensors);
  must(fh_attention(&p, target, &t, workspace, workspace_bytes, stream));
}

// What attention() needs for this problem.
inline size_t workspace_bytes(const Problem& problem, const char* target = nullptr) {
  const fh_problem p = to_c(problem);
  size_t bytes = 0;
  must(fh_workspace_bytes(&p, target, &bytes));
  return bytes;
}

// Why the problem can or cannot be computed there and how, in lines of text.
inline std::string explain(const Problem& problem, const char* target = nullptr) {
  const fh_problem p = to_c(problem);
  return fh_explain(&p, target);
}

}  // namespace v0_4
}  // namespace froghopper
#endif  // FROGHOPPER_FROGHOPPER_HPP_
