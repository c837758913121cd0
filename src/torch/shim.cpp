// SPDX-License-Identifier: Apache-2.0
// torch: looks the functions of PyTorch up, in the libraries that Python has loaded.
#include "src/torch/shim.hpp"

#include <dlfcn.h>

namespace froghopper::torch {
namespace {

// Python loads PyTorch's libraries with their names local, so they are asked for by their own names. Never unloaded.
struct Loaded {
  void* cpu = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void* cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);

  void* symbol(const char* name) const {
    void* found = cpu ? dlsym(cpu, name) : nullptr;
    return found || !cuda ? found : dlsym(cuda, name);
  }
};

}  // namespace

Shim shim;

const char* find() {
  const Loaded loaded;
  const char* missing = nullptr;
  const auto look = [&]<class Function>(Function& function, const char* name, bool needed = true) {
    function = reinterpret_cast<Function>(loaded.symbol(name));
    if (!function && needed && !missing) missing = name;
  };
  look(shim.library_init_fragment, "aoti_torch_library_init_fragment");
  look(shim.library_init_impl, "aoti_torch_library_init_impl");
  look(shim.library_def, "aoti_torch_library_def");
  look(shim.library_impl, "torch_library_impl");
  look(shim.get_layout, "aoti_torch_get_layout");
  look(shim.get_dim, "aoti_torch_get_dim");
  look(shim.get_sizes, "aoti_torch_get_sizes");
  look(shim.get_strides, "aoti_torch_get_strides");
  look(shim.get_dtype, "aoti_torch_get_dtype");
  look(shim.get_device_type, "aoti_torch_get_device_type");
  look(shim.get_device_index, "aoti_torch_get_device_index");
  look(shim.get_data_ptr, "aoti_torch_get_data_ptr");
  look(shim.empty_strided, "aoti_torch_empty_strided");
  look(shim.new_tensor_handle, "aoti_torch_new_tensor_handle");
  look(shim.delete_tensor_object, "aoti_torch_delete_tensor_object");
  look(shim.layout_strided, "aoti_torch_layout_strided");
  look(shim.dtype_float32, "aoti_torch_dtype_float32");
  look(shim.dtype_uint8, "aoti_torch_dtype_uint8");
  look(shim.device_type_cuda, "aoti_torch_device_type_cuda");
  look(shim.current_cuda_stream, "aoti_torch_get_current_cuda_stream", false);
  return missing;
}

}  // namespace froghopper::torch
