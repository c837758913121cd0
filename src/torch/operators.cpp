// SPDX-License-Identifier: Apache-2.0
// torch: attention as operators of PyTorch, froghopper_native::forward and backward, for eager calls. What Python does
// for a call that it has made before - find the plan, make the results, fill in addresses - is done here in two
// microseconds. What was never met, and all that is wrong, is left to Python, which has the checks and the messages.
//
//   Python  froghopper_native::forward(q, k, v, ...)
//   here    a key of everything but addresses; this thread's table does not have it: status > 0, its ticket
//   Python  checks, computes in its own way, and calls froghopper_torch_keep with the ticket and the problem
//   Python  froghopper_native::forward(q, k, v, ...) again
//   here    the table has a plan: status 0, and the results
//
// Each thread has a table of its own, so nothing is locked and nothing is shared with a child of fork.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <utility>

#include <froghopper/froghopper.h>

#include "src/base/per_thread.hpp"
#include "src/torch/table.hpp"
#include "src/torch/tensors.hpp"

namespace froghopper::torch {
namespace {

// Of a call's last result. Above zero: the ticket of a key that is not known here.
constexpr int64_t done = 0;
constexpr int64_t not_here = -1;        // Python computes it, whatever it is
constexpr int64_t library_says = -100;  // less the fh_status

// How q, k, v and their gradients lie, and how o and its gradient do. Memory that is made has rows before heads always.
enum Form : int64_t {
  rows_first,   // [batch, seq, heads, dim], or packed [total, heads, dim]
  heads_first,  // [batch, heads, seq, dim]
  turned        // q, k and v [batch, heads, seq, dim], o [batch, seq, heads, dim]
};

PerThread<Table> tables;

// What both operators read in addition to q, k and v.
enum Side { sink, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, alibi_slopes, sides };

Tensor optional(StableIValue value) {
  auto* const inner = reinterpret_cast<StableIValue*>(value);
  if (!inner) return {};
  Tensor found(reinterpret_cast<TensorHandle>(*inner));
  delete inner;  // PyTorch's convention: who is called lets go of it
  return found;
}

Tensor required(StableIValue value) { return Tensor(reinterpret_cast<TensorHandle>(value)); }

StableIValue result(Tensor x) { return reinterpret_cast<StableIValue>(x.release()); }

struct Sides {
  std::array<Tensor, sides> tensors;

  explicit Sides(const StableIValue* stack) {
    for (size_t i = 0; i < sides; ++i) tensors[i] = optional(stack[i]);
  }
  bool add_to(Key& key) const {
    for (const Tensor& x : tensors) {
      Described found;
      if (x && !describe(x.get(), found)) return false;
      key.add(found);
    }
    return true;
  }
  void fill(fh_tensors& t, const Known& known) const {
    t.sink = static_cast<const float*>(address(tensors[sink].get()));
    t.cu_seqlens_q = static_cast<const int32_t*>(address(tensors[cu_seqlens_q].get()));
    t.cu_seqlens_kv = static_cast<const int32_t*>(address(tensors[cu_seqlens_kv].get()));
    t.seqused_q = static_cast<const int32_t*>(address(tensors[seqused_q].get()));
    t.seqused_kv = static_cast<const int32_t*>(address(tensors[seqused_kv].get()));
    t.alibi_slopes = {address(tensors[alibi_slopes].get()), known.slopes[0], known.slopes[1], known.slopes[2]};
  }
};

bool misaligned(const Known& known, std::initializer_list<const void*> addresses) {
  uintptr_t bits = 0;
  for (const void* at : addresses) bits |= reinterpret_cast<uintptr_t>(at);
  return (bits & known.aligned) != 0;
}

int64_t run(const Known& known, const fh_tensors& t, const Described& q) {
  void* stream = nullptr;
  if (q.device == shim.device_type_cuda() &&
      (!shim.current_cuda_stream || shim.current_cuda_stream(q.index, &stream) != 0))
    return not_here;
  Tensor workspace;
  if (known.workspace_bytes) {
    workspace = make_dense(q, shim.dtype_uint8(), static_cast<int64_t>(known.workspace_bytes));
    if (!workspace) return not_here;
  }
  const fh_status status = fh_plan_run(known.plan, &t, address(workspace.get()), known.workspace_bytes, stream);
  return status == FH_OK ? done : library_says - int64_t{status};
}

// What the thread's table has for the key, or why there is nothing to run.
struct Found {
  const Known* known = nullptr;
  int64_t status = not_here;
};
Found look(const Key& key) {
  Table* const table = tables.make();
  if (!table) return {};
  if (const Known* const known = table->find(key)) return {known, done};
  return {nullptr, table->ask(key)};
}

// Forward: q, k, v, the sides, options, form, what the call is for -> o, lse (o once more where there is none), status.
// gradients: o and lse, of a problem whose gradients can be computed.
enum Purpose : int64_t { only_o, o_and_lse, gradients, backward_pass };
struct Forward {
  Tensor q, k, v;
  Sides side;
  int64_t options, form, purpose;

  explicit Forward(const StableIValue* stack)
      : q(required(stack[0])),
        k(required(stack[1])),
        v(required(stack[2])),
        side(stack + 3),
        options(static_cast<int64_t>(stack[3 + sides])),
        form(static_cast<int64_t>(stack[4 + sides])),
        purpose(static_cast<int64_t>(stack[5 + sides])) {}

  int64_t compute(Tensor& o, Tensor& lse) const {
    Described of_q, of_k, of_v;
    if (!describe(q.get(), of_q) || !describe(k.get(), of_k) || !describe(v.get(), of_v)) return not_here;
    Key key;
    key.add(form << 8 | purpose);
    key.add(options);
    for (const Described* x : {&of_q, &of_k, &of_v}) key.add(*x);
    if (!side.add_to(key)) return not_here;
    const Found found = look(key);
    if (!found.known) return found.status;

    const bool packed = of_q.dim == 3;
    const Axes in = axes_of(packed, form != rows_first), out = axes_of(packed, form == heads_first);
    fh_tensors t = fh_tensors_init();
    t.q = field(q.get(), of_q, in);
    t.k = field(k.get(), of_k, in);
    t.v = field(v.get(), of_v, in);
    if (misaligned(*found.known, {t.q.data, t.k.data, t.v.data})) return not_here;
    std::array<int64_t, most_dims> sizes{};
    if (!packed) sizes[0] = of_q.sizes[0];
    sizes[static_cast<size_t>(out.seq)] = of_q.sizes[in.seq];
    sizes[static_cast<size_t>(out.heads)] = of_q.sizes[in.heads];
    sizes[static_cast<size_t>(of_q.dim - 1)] = of_v.columns();
    Made made = make(of_q, sizes.data(), of_q.dim, out);
    if (!made.tensor) return not_here;
    t.o = made.field;
    o = std::move(made.tensor);
    if (purpose != only_o) {
      const int64_t rows = of_q.sizes[in.seq], heads = of_q.sizes[in.heads];
      const std::array<int64_t, 3> shape{packed ? heads : of_q.sizes[0], packed ? rows : heads, rows};
      const std::array<int64_t, 3> strides{std::max<int64_t>(rows, 1) * (packed ? 1 : std::max<int64_t>(heads, 1)),
                                           packed ? 1 : std::max<int64_t>(rows, 1), 1};
      TensorHandle handle = nullptr;
      if (shim.empty_strided(packed ? 2 : 3, shape.data(), strides.data(), shim.dtype_float32(), of_q.device,
                             of_q.index, &handle))
        return not_here;
      lse = Tensor(handle);
      t.lse = static_cast<float*>(address(handle));
    }
    side.fill(t, *found.known);
    return run(*found.known, t, of_q);
  }
};

void forward(StableIValue* stack, uint64_t, uint64_t) noexcept {
  const Forward call(stack);
  Tensor o, lse;
  const int64_t status = call.compute(o, lse);
  if (status != done || !o)
    o = again(call.q.get());  // an operator's results are tensors, also where nothing came of it
  if (!lse) lse = again(o.get());
  stack[0] = result(std::move(o));
  stack[1] = result(std::move(lse));
  stack[2] = static_cast<StableIValue>(status);
}

// Backward: grad_o, grad_lse, q, k, v, o, lse, the sides, options, form -> grad_q, grad_k, grad_v, grad_sink (q
// where there is no sink), status.
struct Backward {
  Tensor grad_o, grad_lse, q, k, v, o, lse;
  Sides side;
  int64_t options, form;

  explicit Backward(const StableIValue* stack)
      : grad_o(required(stack[0])),
        grad_lse(optional(stack[1])),
        q(required(stack[2])),
        k(required(stack[3])),
        v(required(stack[4])),
        o(required(stack[5])),
        lse(required(stack[6])),
        side(stack + 7),
        options(static_cast<int64_t>(stack[7 + sides])),
        form(static_cast<int64_t>(stack[8 + sides])) {}

  int64_t compute(std::array<Tensor, 4>& grads) const {
    std::array<Described, 7> lies;
    const std::array<TensorHandle, 7> read{q.get(),      k.get(),   v.get(),       o.get(),
                                           grad_o.get(), lse.get(), grad_lse.get()};
    Key key;
    key.add(form << 8 | backward_pass);
    key.add(options);
    for (size_t i = 0; i < read.size(); ++i) {
      if (read[i] && !describe(read[i], lies[i])) return not_here;
      key.add(lies[i]);
    }
    if (!side.add_to(key)) return not_here;
    const Found found = look(key);
    if (!found.known) return found.status;

    const bool packed = lies[0].dim == 3;
    const Axes in = axes_of(packed, form != rows_first), out = axes_of(packed, form == heads_first);
    fh_tensors t = fh_tensors_init();
    t.q = field(read[0], lies[0], in);
    t.k = field(read[1], lies[1], in);
    t.v = field(read[2], lies[2], in);
    t.o = field(read[3], lies[3], out);
    t.grad_o = field(read[4], lies[4], out);
    if (misaligned(*found.known, {t.q.data, t.k.data, t.v.data, t.o.data, t.grad_o.data})) return not_here;
    t.lse = static_cast<float*>(address(read[5]));
    t.grad_lse = static_cast<const float*>(address(read[6]));
    fh_tensor* const fields[] = {&t.grad_q, &t.grad_k, &t.grad_v};
    for (size_t i = 0; i < 3; ++i) {
      Made made = make(lies[i], lies[i].sizes, lies[i].dim, in);
      if (!made.tensor) return not_here;
      *fields[i] = made.field;
      grads[i] = std::move(made.tensor);
    }
    side.fill(t, *found.known);
    if (t.sink) {
      grads[3] = make_dense(lies[0], shim.dtype_float32(), lies[0].sizes[in.heads]);
      if (!grads[3]) return not_here;
      t.grad_sink = static_cast<float*>(address(grads[3].get()));
    }
    return run(*found.known, t, lies[0]);
  }
};

void backward(StableIValue* stack, uint64_t, uint64_t) noexcept {
  const Backward call(stack);
  std::array<Tensor, 4> grads;
  const int64_t status = call.compute(grads);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i]) grads[i] = again(call.q.get());
    stack[i] = result(std::move(grads[i]));
  }
  stack[4] = static_cast<StableIValue>(status);
}

}  // namespace
}  // namespace froghopper::torch

extern "C" {

// Registers the operators, once a process. Null, or what this PyTorch does not have.
[[gnu::visibility("default")]] const char* froghopper_torch_register() {
  using namespace froghopper::torch;
  if (const char* const missing = find()) return missing;
  LibraryHandle schemas = nullptr, kernels = nullptr;  // they stay for as long as the process
  constexpr const char* sides_schema =
      "Tensor? sink, Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, Tensor? seqused_q, Tensor? seqused_kv, "
      "Tensor? alibi_slopes, int options, int form";
  char forward_schema[400], backward_schema[400];
  std::snprintf(forward_schema, sizeof forward_schema,
                "forward(Tensor q, Tensor k, Tensor v, %s, int purpose) -> (Tensor, Tensor, int)", sides_schema);
  std::snprintf(
      backward_schema, sizeof backward_schema,
      "backward(Tensor grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, %s) -> "
      "(Tensor, Tensor, Tensor, Tensor, int)",
      sides_schema);
  constexpr const char* name = "froghopper_native";
  // For whatever has memory: what a device lacks is Python's to say.
  if (shim.library_init_fragment(name, __FILE__, __LINE__, &schemas) || shim.library_def(schemas, forward_schema) ||
      shim.library_def(schemas, backward_schema) ||
      shim.library_init_impl(name, "CompositeExplicitAutograd", __FILE__, __LINE__, &kernels) ||
      shim.library_impl(kernels, "forward", forward, abi_version) ||
      shim.library_impl(kernels, "backward", backward, abi_version))
    return "an operator that can be registered";
  return nullptr;
}

// The key of that ticket is this problem from now on, on this thread. slopes: strides of alibi_slopes; alignment: bytes
// at whose multiples rows begin.
[[gnu::visibility("default")]] fh_status froghopper_torch_keep(int64_t ticket, const fh_problem* problem,
                                                               const char* target, const int64_t* slopes,
                                                               int64_t alignment) {
  using namespace froghopper::torch;
  Table* const table = tables.make();
  return table ? table->keep(ticket, *problem, target, slopes, alignment) : FH_OK;
}
}
