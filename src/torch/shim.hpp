// SPDX-License-Identifier: Apache-2.0
// torch: the functions of PyTorch's stable C interface that the operators call, found in the process by name, so that
// nothing of PyTorch is there when this is compiled and one binary serves every version from 2.10 on. Declared as
// torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h have them.
#pragma once
#include <cstdint>

namespace froghopper::torch {

struct TensorObject;  // at::Tensor
struct LibraryObject;
using TensorHandle = TensorObject*;
using LibraryHandle = LibraryObject*;
using StableIValue = uint64_t;  // an argument or a result of an operator: a number, a handle, or a pointer to one
using Error = int32_t;          // 0: none
using BoxedKernel = void (*)(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);

// The interface is that of PyTorch 2.10, and is asked for as such.
constexpr uint64_t abi_version = (uint64_t{2} << 56) | (uint64_t{10} << 48);

struct Shim {
  Error (*library_init_fragment)(const char* name, const char* file, uint32_t line, LibraryHandle* made);
  Error (*library_init_impl)(const char* name, const char* key, const char* file, uint32_t line, LibraryHandle* made);
  Error (*library_def)(LibraryHandle library, const char* schema);
  Error (*library_impl)(LibraryHandle library, const char* name, BoxedKernel kernel, uint64_t abi_version);
  Error (*get_layout)(TensorHandle x, int32_t* layout);
  Error (*get_dim)(TensorHandle x, int64_t* dim);
  Error (*get_sizes)(TensorHandle x, int64_t** sizes);
  Error (*get_strides)(TensorHandle x, int64_t** strides);
  Error (*get_dtype)(TensorHandle x, int32_t* dtype);
  Error (*get_device_type)(TensorHandle x, int32_t* device);
  Error (*get_device_index)(TensorHandle x, int32_t* index);
  Error (*get_data_ptr)(TensorHandle x, void** address);
  Error (*empty_strided)(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device,
                         int32_t index, TensorHandle* made);
  Error (*new_tensor_handle)(TensorHandle x, TensorHandle* made);  // one more reference
  Error (*delete_tensor_object)(TensorHandle x);
  int32_t (*layout_strided)();
  int32_t (*dtype_float32)();
  int32_t (*dtype_uint8)();
  int32_t (*device_type_cuda)();
  Error (*current_cuda_stream)(int32_t device_index, void** stream);  // null: this PyTorch has no CUDA
};

extern Shim shim;  // filled in by find, before any operator is there

// Null, or the name of what this process does not have.
const char* find();

}  // namespace froghopper::torch
