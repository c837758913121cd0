// SPDX-License-Identifier: Apache-2.0
// xla: the library as XLA calls it. Each handler reads a problem from its attributes and tensors from XLA's buffers,
// and calls fh_attention on XLA's stream. It keeps nothing, so any number of threads may be in it at once.
//
//   problem     text   "fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal"
//   operands    text   names of the fields of fh_tensors that the arguments are, in their order: "q k v sink"
//   results     text   likewise; a last "workspace" is bytes to compute in: "o lse workspace"
//   names       text   what messages call fields: "seq_q=max_seqlen_q;total_q=the number of rows of q"; may be missing
//
// Arrays are dense, in the order of docs and header. The workspace is aligned here, so it has 255 bytes to spare.
// Only XLA's C interface is used, and of that what its first version had: one binary serves every XLA that says 0.x. It
// is compiled with the headers of jaxlib 0.6 to 0.12; scripts/wheel tries the oldest and the newest.
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include <froghopper/froghopper.h>
#include <xla/ffi/api/c_api.h>

#include "src/xla/arrays.hpp"
#include "src/xla/names.hpp"

namespace {

using namespace froghopper::xla;

constexpr uintptr_t workspace_alignment = 256;  // what fh_plan_run asks for
constexpr int first_minor_version = 1;          // of XLA's interface, whose structs are all that is used

// Everything that can go wrong ends as one of these.
struct Wrong {
  XLA_FFI_Error_Code code = XLA_FFI_Error_Code_OK;
  std::string text;
  explicit operator bool() const { return code != XLA_FFI_Error_Code_OK; }
};

Wrong invalid(std::string text) { return {XLA_FFI_Error_Code_INVALID_ARGUMENT, std::move(text)}; }

Wrong library_says(fh_status status) {
  switch (status) {
    case FH_OK: return {};
    case FH_INVALID_PROBLEM:
    case FH_INVALID_TENSOR: return invalid(fh_last_error());
    case FH_UNSUPPORTED: return {XLA_FFI_Error_Code_UNIMPLEMENTED, fh_last_error()};
    case FH_NO_DEVICE: return {XLA_FFI_Error_Code_FAILED_PRECONDITION, fh_last_error()};
    default: return {XLA_FFI_Error_Code_INTERNAL, fh_last_error()};
  }
}

XLA_FFI_Error* error_of(const XLA_FFI_CallFrame& frame, XLA_FFI_Error_Code code, const char* text) {
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, text, code};
  return frame.api->XLA_FFI_Error_Create(&args);
}

// What one call computes, gathered from its frame.
struct Call {
  fh_problem problem = fh_problem_init();
  fh_tensors tensors = fh_tensors_init();
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  void* somewhere = nullptr;  // in some array: where one lies that has no elements and from XLA no address
};

std::optional<std::string_view> attribute(const XLA_FFI_CallFrame& frame, std::string_view name) {
  for (int64_t i = 0; i < frame.attrs.size; i++) {
    const XLA_FFI_ByteSpan& found = *frame.attrs.names[i];
    if (std::string_view(found.ptr, found.len) != name || frame.attrs.types[i] != XLA_FFI_AttrType_STRING) continue;
    const auto* const text = static_cast<const XLA_FFI_ByteSpan*>(frame.attrs.attrs[i]);
    return std::string_view(text->ptr, text->len);
  }
  return std::nullopt;
}

Wrong missing(std::string_view name) {
  return invalid(joined({"the attribute ", name, " is not there; it is a text. Set it."}));
}

Wrong read_problem(const XLA_FFI_CallFrame& frame, Call& call) {
  const auto line = attribute(frame, "problem");
  if (!line) return missing("problem");
  return library_says(fh_problem_parse(std::string(*line).c_str(), &call.problem));
}

// Gradients that are added to f32 ones, which are operands too.
bool is_sum(std::string_view name, const fh_problem& problem) {
  return problem.op == FH_BACKWARD && problem.accumulate &&
         (name == "grad_q" || name == "grad_k" || name == "grad_v");
}

void set_workspace(const XLA_FFI_Buffer& buffer, Call& call) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(buffer.data),
                  end = begin + static_cast<uintptr_t>(buffer.dims[0]);
  const uintptr_t aligned = (begin + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
  if (!buffer.data || aligned >= end) return;
  call.workspace = reinterpret_cast<void*>(aligned);
  call.workspace_bytes = end - aligned;
}

Wrong set_field(std::string_view name, const XLA_FFI_Buffer& buffer, Call& call) {
  if (name == "workspace" && buffer.dtype == XLA_FFI_DataType_U8 && buffer.rank == 1) {
    set_workspace(buffer, call);
    return {};
  }
  const auto* const field =
      std::find_if(std::begin(fields), std::end(fields), [&](const Field& f) { return f.name == name; });
  if (field == std::end(fields)) return invalid(joined({"'", name, "' is no field of fh_tensors. Name one."}));

  Shape shape{buffer.rank, {}};
  if (buffer.rank <= 4) std::copy_n(buffer.dims, buffer.rank, shape.extents.begin());
  const Shape wanted = shape_of(field->role, call.problem);
  const XLA_FFI_DataType type =
      is_sum(name, call.problem) ? XLA_FFI_DataType_F32 : type_of(field->role, call.problem);
  if (!fits(field->role, shape, wanted) || buffer.dtype != type)
    return invalid(joined({name, " has the shape ", shape.text(), " and XLA's type ", std::to_string(buffer.dtype),
                           "; this problem has ", wanted.text(), " and ", std::to_string(type), ". Give that."}));

  void* const data = buffer.data ? buffer.data : call.somewhere;
  char* const place = reinterpret_cast<char*>(&call.tensors) + field->offset;
  if (!has_strides(field->role)) {
    std::memcpy(place, &data, sizeof data);
    return {};
  }
  const fh_tensor tensor = tensor_of(field->role, call.problem, data, shape);
  std::memcpy(place, &tensor, sizeof tensor);
  return {};
}

Wrong set_fields(std::string_view attribute_name, const XLA_FFI_CallFrame& frame, int64_t count, void** buffers,
                 Call& call) {
  const auto names = attribute(frame, attribute_name);
  if (!names) return missing(attribute_name);
  const auto one_each = [&] {
    return invalid(joined({"there are ", std::to_string(count), " ", attribute_name, " and these names: ", *names,
                           ". Give each array a name."}));
  };
  std::string_view rest = *names;
  for (int64_t i = 0; i < count; i++) {
    if (rest.empty()) return one_each();
    const std::string_view name = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    if (Wrong wrong = set_field(name, *static_cast<const XLA_FFI_Buffer*>(buffers[i]), call)) return wrong;
  }
  return rest.empty() ? Wrong{} : one_each();
}

void* first_address(int64_t count, void** buffers) {
  for (int64_t i = 0; i < count; i++)
    if (void* const data = static_cast<const XLA_FFI_Buffer*>(buffers[i])->data) return data;
  return nullptr;
}

using Copy = int(unsigned long long, unsigned long long, size_t, void*);

// Of the driver, which XLA has loaded where it calls for a GPU; null where there is none.
Copy* driver_copy() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  return driver ? reinterpret_cast<Copy*>(dlsym(driver, "cuMemcpyDtoDAsync_v2")) : nullptr;
}

// In memory of the GPU where there is a stream.
bool copy(void* to, const void* from, size_t bytes, void* stream) {
  if (!stream) return std::memcpy(to, from, bytes), true;
  static Copy* const enqueue = driver_copy();
  return enqueue && enqueue(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from), bytes, stream) == 0;
}

// The library merges, adds and appends in place. Operands and results are told to share memory, but XLA's fusions of
// slices into calls give some results memory of their own, which then gets what the operand holds.
bool works_in_place(const fh_problem& problem) { return problem.accumulate || problem.op == FH_APPEND; }

Wrong copy_to_results(const XLA_FFI_CallFrame& frame, const fh_tensors& operands, const fh_tensors& results,
                      void* stream) {
  const struct {
    std::string_view name;
    const void* from;
    void* to;
  } changed[] = {{"o", operands.o.data, results.o.data},
                 {"lse", operands.lse, results.lse},
                 {"max_logit", operands.max_logit, results.max_logit},
                 {"grad_q", operands.grad_q.data, results.grad_q.data},
                 {"grad_k", operands.grad_k.data, results.grad_k.data},
                 {"grad_v", operands.grad_v.data, results.grad_v.data},
                 {"grad_sink", operands.grad_sink, results.grad_sink},
                 {"cache_k", operands.cache_k.data, results.cache_k.data},
                 {"cache_v", operands.cache_v.data, results.cache_v.data},
                 {"scale_k", operands.scale_k.data, results.scale_k.data},
                 {"scale_v", operands.scale_v.data, results.scale_v.data}};
  std::string_view rest = attribute(frame, "results").value_or("");
  for (int64_t i = 0; i < frame.rets.size && !rest.empty(); i++) {
    const std::string_view name = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    const auto* const its = std::ranges::find(changed, name, &std::decay_t<decltype(changed[0])>::name);
    if (its == std::end(changed) || its->from == its->to) continue;
    const auto& buffer = *static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[i]);
    const size_t bytes =
        std::accumulate(buffer.dims, buffer.dims + buffer.rank, bytes_of(buffer.dtype), std::multiplies<size_t>());
    if (bytes > 0 && !copy(its->to, its->from, bytes, stream))
      return {XLA_FFI_Error_Code_INTERNAL,
              joined({name, " could not be copied to its result. Alias results to the operands that they change."})};
  }
  return {};
}

Wrong run(const XLA_FFI_CallFrame& frame, const char* target, void* stream) {
  Call call;
  if (Wrong wrong = read_problem(frame, call)) return wrong;
  call.somewhere = first_address(frame.args.size, frame.args.args);
  if (!call.somewhere) call.somewhere = first_address(frame.rets.size, frame.rets.rets);
  if (!call.somewhere) return {};  // no array has elements
  if (Wrong wrong = set_fields("operands", frame, frame.args.size, frame.args.args, call)) return wrong;
  const Call operands = call;
  const fh_tensors& given = operands.tensors;
  if (call.problem.op == FH_BACKWARD && call.problem.accumulate &&
      !(given.grad_q.data && given.grad_k.data && given.grad_v.data && (given.grad_sink || !call.problem.sink)))
    return invalid(
        "problem has acc, but a result of XLA is new memory that holds nothing to add to. Give grad_q, grad_k, "
        "grad_v "
        "and, with a sink, grad_sink as operands too, or leave out acc.");
  if (Wrong wrong = set_fields("results", frame, frame.rets.size, frame.rets.rets, call)) return wrong;
  if (works_in_place(call.problem))
    if (Wrong wrong = copy_to_results(frame, operands.tensors, call.tensors, stream)) return wrong;
  Wrong wrong =
      library_says(fh_attention(&call.problem, target, &call.tensors, call.workspace, call.workspace_bytes, stream));
  const auto names = attribute(frame, "names");
  if (names && !names->empty()) wrong.text = froghopper::xla::renamed(wrong.text, *names);
  return wrong;
}

// XLA says which GPU a call is for. The first versions did not; there it is the one whose context is current.
std::string gpu_of(const XLA_FFI_CallFrame& frame) {
  constexpr size_t needed = offsetof(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get) + sizeof(XLA_FFI_DeviceOrdinal_Get*);
  if (frame.api->struct_size < needed) return "hopper";
  XLA_FFI_DeviceOrdinal_Get_Args args{XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, nullptr, frame.ctx, 0};
  XLA_FFI_Error* const none = frame.api->XLA_FFI_DeviceOrdinal_Get(&args);
  if (!none) return joined({"hopper:", std::to_string(args.device_ordinal)});
  XLA_FFI_Error_Destroy_Args forgotten{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, none};
  frame.api->XLA_FFI_Error_Destroy(&forgotten);
  return "hopper";
}

// Makes the plan and loads its kernels: neither may be done while a stream is captured.
Wrong prepare(const XLA_FFI_CallFrame& frame, const char* target) {
  Call call;
  if (Wrong wrong = read_problem(frame, call)) return wrong;
  size_t bytes = 0;
  return library_says(fh_workspace_bytes(&call.problem, target, &bytes));
}

// XLA asks every handler which version it was made for, and refuses one that is newer than itself. The first ones did
// not say which they are.
void describe(const XLA_FFI_CallFrame& frame, XLA_FFI_Metadata& metadata, XLA_FFI_Handler_Traits traits) {
  metadata.api_version.major_version = XLA_FFI_API_MAJOR;
  metadata.api_version.minor_version =
      frame.api ? std::min(XLA_FFI_API_MINOR, frame.api->api_version.minor_version) : first_minor_version;
  metadata.traits = traits;
}

template <class Body>
XLA_FFI_Error* answer(XLA_FFI_CallFrame* frame, XLA_FFI_Handler_Traits traits, Body body) noexcept {
  const auto* const extension = frame->extension_start;  // a name of its own in each version of the header
  if (extension && extension->type == XLA_FFI_Extension_Metadata) {
    describe(*frame, *reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)->metadata, traits);
    return nullptr;
  }
  try {
    const Wrong wrong = body();
    return wrong ? error_of(*frame, wrong.code, wrong.text.c_str()) : nullptr;
  } catch (...) {  // only a text could not be made
    return error_of(*frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "host memory ran out. Free some and call again.");
  }
}

}  // namespace

extern "C" {

FH_API XLA_FFI_Error* froghopper_xla_cpu(XLA_FFI_CallFrame* frame) {
  return answer(frame, 0, [&] { return run(*frame, "cpu", nullptr); });
}

FH_API XLA_FFI_Error* froghopper_xla_gpu(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* no_stream = nullptr;
  XLA_FFI_Error* const wrong = answer(frame, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE, [&]() -> Wrong {
    XLA_FFI_Stream_Get_Args args{XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame->ctx, nullptr};
    no_stream = frame->api->XLA_FFI_Stream_Get(&args);
    return no_stream ? Wrong{} : run(*frame, gpu_of(*frame).c_str(), args.stream);
  });
  return no_stream ? no_stream : wrong;
}

FH_API XLA_FFI_Error* froghopper_xla_gpu_prepare(XLA_FFI_CallFrame* frame) {
  return answer(frame, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE,
                [&] { return prepare(*frame, gpu_of(*frame).c_str()); });
}
}
