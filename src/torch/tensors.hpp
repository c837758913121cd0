// SPDX-License-Identifier: Apache-2.0
// torch: tensors of PyTorch as the operators see them: held, described, made.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <froghopper/froghopper.h>

#include "src/torch/shim.hpp"

namespace froghopper::torch {

constexpr int most_dims = 4;

// What is to know of a tensor but its address. No tensor: all zero.
struct Described {
  int64_t dim = 0;
  int32_t dtype = 0, device = 0, index = 0;
  const int64_t *sizes = nullptr, *strides = nullptr;  // PyTorch's own, while the tensor lives

  int64_t columns() const { return sizes[dim - 1]; }
};

inline bool describe(TensorHandle x, Described& found) {
  int32_t layout = -1;
  int64_t *sizes = nullptr, *strides = nullptr;
  const bool known = !shim.get_layout(x, &layout) && layout == shim.layout_strided() &&
                     !shim.get_dim(x, &found.dim) && found.dim <= most_dims && !shim.get_dtype(x, &found.dtype) &&
                     !shim.get_device_type(x, &found.device) && !shim.get_device_index(x, &found.index) &&
                     !shim.get_sizes(x, &sizes) && !shim.get_strides(x, &strides);
  found.sizes = sizes;
  found.strides = strides;
  return known;
}

inline void* address(TensorHandle x) {
  void* found = nullptr;
  return x && !shim.get_data_ptr(x, &found) ? found : nullptr;
}

// A tensor that is held here and let go of.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TensorHandle owned) : handle_(owned) {}
  Tensor(Tensor&& other) noexcept : handle_(other.release()) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle_) shim.delete_tensor_object(handle_);
  }
  explicit operator bool() const { return handle_ != nullptr; }
  TensorHandle get() const { return handle_; }
  TensorHandle release() { return std::exchange(handle_, nullptr); }

 private:
  TensorHandle handle_ = nullptr;
};

inline Tensor again(TensorHandle x) {
  TensorHandle made = nullptr;
  shim.new_tensor_handle(x, &made);
  return Tensor(made);
}

// Where batch, seq and heads are among the dimensions of a tensor; a packed one has no batch.
struct Axes {
  int64_t seq, heads;
  bool batch;
};
inline Axes axes_of(bool packed, bool heads_are_first) {
  if (packed) return {0, 1, false};
  return heads_are_first ? Axes{2, 1, true} : Axes{1, 2, true};
}

inline fh_tensor field(TensorHandle x, const Described& lies, Axes axes) {
  return {address(x), axes.batch ? lies.strides[0] : 0, lies.strides[axes.seq], lies.strides[axes.heads]};
}

// A tensor without content, its memory dense in the order [batch, seq, heads, dim].
struct Made {
  Tensor tensor;
  fh_tensor field{};
};
inline Made make(const Described& like, const int64_t* sizes, int64_t dim, Axes axes) {
  std::array<int64_t, most_dims> strides{};
  int64_t stride = 1;
  const auto next = [&](int64_t axis) {
    strides[static_cast<size_t>(axis)] = stride;
    stride *= std::max<int64_t>(sizes[axis], 1);
  };
  next(dim - 1), next(axes.heads), next(axes.seq);
  if (axes.batch) next(0);
  TensorHandle made = nullptr;
  if (shim.empty_strided(dim, sizes, strides.data(), like.dtype, like.device, like.index, &made)) return {};
  Described lies{.dim = dim, .sizes = sizes, .strides = strides.data()};
  return {Tensor(made), field(made, lies, axes)};
}

// Values of one type side by side.
inline Tensor make_dense(const Described& on, int32_t dtype, int64_t count) {
  const int64_t one = 1;
  TensorHandle made = nullptr;
  return Tensor(shim.empty_strided(1, &count, &one, dtype, on.device, on.index, &made) ? nullptr : made);
}

}  // namespace froghopper::torch
