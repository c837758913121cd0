// SPDX-License-Identifier: Apache-2.0
// problem: the table of tensors. What a tensor is called, where the user's struct has it, what shape it has and what is
// done with it is one row; all code that goes through tensors (binding, placement, inputs of checks) walks the table.
// The rows are in table.cpp, binding in tensors.cpp, lengths of sequences in lengths.cpp, scales in scales.cpp.
#pragma once
#include <limits>
#include <span>
#include <variant>

#include "src/base/element.hpp"
#include "src/problem/problem.hpp"

namespace froghopper {

// A tensor [batch, seq, heads, dim] somewhere in memory. Packed: batch extent 1, seq extent total. Lists of integers
// are views too: lse is [batch, seq, heads, 1], cu_seqlens [1, batch + 1, 1, 1], sink [1, 1, heads_q, 1]. Scales:
// [batch, blocks, heads, 1 or dim_v], slopes and max_logit [batch, 1, heads_q, 1], also of packed sequences.
struct View {
  void* data = nullptr;  // null: not there, or without elements
  Element element = Element::f32;
  int64_t batch = 0, seq = 0, heads = 0, dim = 0;             // extents
  int64_t stride_batch = 0, stride_seq = 0, stride_head = 0;  // elements; 0 where the extent is at most 1

  // The row's first element, counted from data.
  int64_t at(int64_t b, int64_t row, int64_t head) const {
    return b * stride_batch + row * stride_seq + head * stride_head;
  }
  char* address(int64_t b, int64_t row, int64_t head) const {
    return static_cast<char*>(data) + at(b, row, head) * size_of(element);
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  bool empty() const { return batch == 0 || seq == 0 || heads == 0; }
};

// One member a row of the table, of the same name.
struct Views {
  View q, k, v, o;
  View lse;
  View cu_seqlens_q, cu_seqlens_kv;
  View seqused_q, seqused_kv;
  View sink;
  View grad_o;
  View grad_q, grad_k, grad_v;
  View grad_lse, grad_sink;
  View scale_q, scale_k, scale_v;
  View quantised_q, quantised_k, quantised_v;
  View mean_k, mean_v;
  View alibi_slopes;
  View max_logit;
  View block_table;
  View cache_k, cache_v, q_out;
  View slot_mapping, positions;
  View rotary_cos, rotary_sin, norm_q, norm_k;
  View gate, grad_gate;
  View o_sum;
};

// What a problem does with a tensor.
enum class Use : unsigned char {
  absent,     // nothing: it must be NULL
  read,       // it must be there
  may_read,   // the user may leave it out
  written,    // it must be there
  may_write,  // the user may leave it out
  added_to,   // it must be there, with values: what it holds is read, and the sum, or what it is merged to, written
};
constexpr bool is_written(Use use) { return use == Use::written || use == Use::may_write || use == Use::added_to; }
constexpr bool is_demanded(Use use) { return use == Use::read || use == Use::written || use == Use::added_to; }

struct Shape {
  int64_t batch, seq, heads, dim;
  Element element;
};

// A member of fh_tensors: a tensor with strides of the user's, or a pointer to dense values. lse is a pointer whose
// strides are members of their own, 0 where it is dense.
class UserField {
 public:
  template <class T>
  constexpr UserField(T fh_tensors::*member) : member_(member) {}
  bool strided() const { return member_.index() == 0; }
  fh_tensor get(const fh_tensors&) const;  // of a pointer but lse: without strides
  void set(fh_tensors&, const fh_tensor&) const;

  bool of_lse() const;

 private:
  std::variant<fh_tensor fh_tensors::*, float * fh_tensors::*, const float * fh_tensors::*,
               const int32_t * fh_tensors::*, const int64_t * fh_tensors::*>
      member_;
};

struct Tensor {
  const char* name;    // in fh_tensors, in messages, in files
  const char* option;  // what of a problem asks for it, in words; "": no option does
  const char* how;     // the fields of fh_problem to set for that
  const char* holds;   // what it must hold, for the message where it is missing
  View Views::*view;
  UserField field;
  Shape (*shape)(const Problem&);
  Use (*use)(const Problem&);
};
std::span<const Tensor> tensors();
size_t index_of(View Views::*);  // in tensors()

bool has_strides(const fh_tensor&);  // not all are 0

// The tensor at user's address and strides. Values without strides are dense, [batch, heads, seq].
View view_of(const Tensor&, const Problem&, const fh_tensor& user);

// The rules that hold on every backend: what must be there is there, what may not overlap does not (rows that are
// written; what is written and any other tensor, overlap.hpp), strides are not negative. The address of an empty tensor
// may be NULL. Alignment for TMA: see runtime/tensor_map.hpp. No pointer is followed: it may be memory of a GPU.
Result<Views> bind(const Problem&, const fh_tensors&);

// Of an append problem: what goes together and is not. "": nothing. append.cpp, as the next two.
std::string incomplete_append(const Problem&, const Views&);
bool in_place(const Views&, View Views::*, View Views::*);  // these two are q and q_out, which is q
// Where rows go is in the cache, and positions are in the tables; host memory only.
Result<void> check_places(const Problem&, const Views&);

// Where a new row is. slot: which row of the cache, of those of all its batches or pages one after the other; below 0:
// none. Host memory, as above; the device's half is device/append/append.cuh.
struct PlaceOfRow {
  int64_t batch, row;  // in q
  int64_t slot, position;
};
PlaceOfRow place_of_row(const Problem&, const Views&, int64_t sequence, int64_t row);

// Rows of one sequence: where they begin in the packed or batched tensor, how many there are, how many count.
struct Rows {
  int64_t batch;   // index into the tensor's first extent; 0 for packed tensors
  int64_t first;   // row index in the packed tensor; 0 for batched tensors
  int64_t extent;  // rows that o and lse have for it
  int64_t
      used;  // rows that count: query rows from there on attend to nothing, and nothing attends to keys from there on
};
// Host memory only (CPU backend, oracle, tests). Bad lengths (cu_seqlens that do not begin with 0, fall, reach past
// total or make a sequence longer than seq; seqused outside its sequence): a Failure.
Result<void> check_lengths(const Problem&, const Views&);
Rows rows_q(const Problem&, const Views&, int64_t sequence);
Rows rows_kv(const Problem&, const Views&, int64_t sequence);

// What is wrong with an entry of block_table that is needed; empty: it names a page.
std::string wrong_page(const Problem&, int64_t sequence, int64_t column, int64_t page);

// Where the rows of k or v of one sequence lie: one behind the other, or in pages. Host memory, as above. The device's
// half is device/fwd/kv_source.cuh.
class KvRows {
 public:
  KvRows() = default;
  KvRows(const View& x, const Rows& rows, const View& block_table, int64_t sequence)
      : x_(&x), batch_(rows.batch), first_(rows.first) {
    if (!block_table.data) return;
    pages_ = block_table.as<int32_t>() + block_table.at(sequence, 0, 0);
    step_ = block_table.stride_seq;
  }
  // The row's first element, counted from that of the tensor.
  int64_t at(int64_t row, int64_t head) const {
    if (!pages_) return x_->at(batch_, first_ + row, head);
    return x_->at(pages_[row / x_->seq * step_], row % x_->seq, head);
  }
  const char* address(int64_t row, int64_t head) const {
    return static_cast<const char*>(x_->data) + at(row, head) * size_of(x_->element);
  }
  // How many rows from this one on follow each other by stride(), as far as is known without looking further.
  int64_t run(int64_t row) const { return pages_ ? x_->seq - row % x_->seq : std::numeric_limits<int64_t>::max(); }
  int64_t stride() const { return x_->stride_seq; }
  int64_t head_stride() const { return x_->stride_head; }

 private:
  const View* x_ = nullptr;
  const int32_t* pages_ = nullptr;  // of the sequence; null: not in pages
  int64_t step_ = 0;                // from one to the next
  int64_t batch_ = 0, first_ = 0;
};
KvRows k_rows(const Views&, const Rows&, int64_t sequence);
KvRows v_rows(const Views&, const Rows&, int64_t sequence);

// Scales of one head of one sequence, as its rows and columns have them. Host memory, as above.
class Scales {
 public:
  Scales() = default;
  // Each row has its own, where `rows` says.
  Scales(const View& scales, const KvRows& rows, int64_t head)
      : first_(scales.as<float>()), rows_(1), tokens_(rows), head_(head), by_token_(true) {}
  // scales: empty where the values are not 8-bit; then all are 1.
  Scales(const Problem& p, const View& scales, int64_t sequence, int64_t head)
      : first_(scales.data ? scales.as<float>() + scales.at(sequence, 0, head) : nullptr),
        rows_(scales.dim > 1 ? 0 : p.scale_rows),
        step_(scales.stride_seq),
        columns_(scales.dim > 1) {}
  explicit operator bool() const { return first_ != nullptr; }
  bool by_column() const { return columns_; }
  bool by_rows() const { return rows_ > 0; }   // blocks of rows have their own
  bool by_token() const { return by_token_; }  // blocks of a single row
  const float* of_row(int64_t row) const {
    return first_ + (by_token_ ? tokens_.at(row, head_) : rows_ > 0 ? row / rows_ * step_ : 0);
  }
  float at(int64_t row, int64_t column) const { return first_ ? of_row(row)[columns_ ? column : 0] : 1; }
  int64_t end_of_block(int64_t row) const { return (row / rows_ + 1) * rows_; }  // by_rows() only
  // Of `count` rows from `first` on; not by column.
  void of_rows(int64_t first, int64_t count, float* to) const {
    for (int64_t i = 0; i < count;) {
      const int64_t end = by_rows() ? std::min(count, end_of_block(first + i) - first) : count;
      std::fill(to + i, to + end, *of_row(first + i));
      i = end;
    }
  }

 private:
  const float* first_ = nullptr;
  int64_t rows_ = 0, step_ = 0;
  bool columns_ = false;
  KvRows tokens_;
  int64_t head_ = 0;
  bool by_token_ = false;
};
Scales scales_of_kv(const Problem&, const Views&, View Views::*scales, const Rows&, int64_t sequence, int64_t head);

// The scales of rows that count are from 2^-126 to 2^126; else a Failure that names one which is not.
Result<void> check_scales(const Problem&, const Views&);
// "-1; a scale is positive, ..." of a number that is no scale; "" of one that is.
std::string why_no_scale(float);

}  // namespace froghopper
