// SPDX-License-Identifier: Apache-2.0
// cp: what a plan on a GPU does to memory in addition to attention: by kernels of the library, but for fills, copies
// of one row and copies that are not aligned, which the driver makes.
#include <froghopper/cp.h>

#include "contract/elementwise.h"
#include "src/cp/driver.hpp"
#include "src/cp/errors.hpp"
#include "src/cp/memory.hpp"

// src/api/c_api.cpp: of the library of the same build.
extern "C" fh_status fh_private_elementwise(int op, fh_dtype dtype, const froghopper::ElementwiseParams* params,
                                            void* stream);
extern "C" fh_status fh_private_prepare_elementwise(void);

namespace froghopper::cp {
namespace {

// The largest distance of rows that every GPU's driver copies in one call.
constexpr uint64_t most_pitch = 0x7fffffff;

constexpr uint64_t copied_at_once = 16;  // bytes, by a thread of the library's kernel

// The functions are the same whichever call finds them.
Result<Driver>& driver() {
  static Result<Driver> found = find_driver(nullptr);
  return found;
}

CUdeviceptr address(const void* data, uint64_t bytes = 0) { return reinterpret_cast<uintptr_t>(data) + bytes; }

int fill(void*, void* data, uint32_t value, uint64_t words, void* stream) {
  return driver()->memset_d32(address(data), value, words, static_cast<CUstream>(stream));
}

int elementwise(ElementwiseOp op, fh_dtype dtype, const ElementwiseParams& params, void* stream) {
  return fh_private_elementwise(static_cast<int>(op), dtype, &params, stream);
}

// Rows of whole 16 bytes, of which the driver copies half as many in a second. A failure is negative.
int copy_rows(void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch, uint64_t bytes, uint64_t rows,
              void* stream) {
  const auto floats = static_cast<long long>(bytes / sizeof(float));
  return -elementwise(ElementwiseOp::copy, FH_F32,
                      {to, static_cast<const float*>(from), floats * static_cast<long long>(rows), floats,
                       static_cast<long long>(to_pitch), static_cast<long long>(from_pitch)},
                      stream);
}

int copy(void*, void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch, uint64_t bytes, uint64_t rows,
         void* stream) {
  const CUstream s = static_cast<CUstream>(stream);
  const uint64_t ends = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | to_pitch | from_pitch;
  if (rows > 1 && (ends | bytes) % copied_at_once == 0)
    return copy_rows(to, to_pitch, from, from_pitch, bytes, rows, stream);
  if (rows == 1 || to_pitch > most_pitch || from_pitch > most_pitch) {
    for (uint64_t r = 0; r < rows; ++r)
      if (const CUresult e = driver()->memcpy(address(to, r * to_pitch), address(from, r * from_pitch), bytes, s))
        return e;
    return 0;
  }
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcDevice = address(from), c.srcPitch = from_pitch;
  c.dstDevice = address(to), c.dstPitch = to_pitch;
  c.WidthInBytes = bytes, c.Height = rows;
  return driver()->memcpy_2d(&c, s);
}

int add(void*, float* into, const float* from, uint64_t count, void* stream) {
  return elementwise(ElementwiseOp::add, FH_F32, {into, from, static_cast<long long>(count), 1, 0, 0}, stream);
}

int convert(void*, void* to, fh_dtype dtype, const float* from, uint64_t count, void* stream) {
  return elementwise(ElementwiseOp::convert, dtype, {to, from, static_cast<long long>(count), 1, 0, 0}, stream);
}

int spread(void*, float* to, const float* from, uint64_t rows, uint64_t columns, void* stream) {
  const auto all = static_cast<long long>(rows * columns);
  return elementwise(ElementwiseOp::broadcast, FH_F32, {to, from, all, static_cast<long long>(columns), 0, 0},
                     stream);
}

}  // namespace

const CudaKernels cuda_kernels = {copy, add, convert, spread};

}  // namespace froghopper::cp

fh_status fh_cp_cuda_memory(fh_cp_memory* memory) {
  using namespace froghopper::cp;
  if (memory == nullptr) return has_no_place("fh_cp_cuda_memory", "memory", FH_INVALID_TENSOR);
  if (!driver()) return failed("fh_cp_cuda_memory", driver().failure());
  // Now: a kernel of NCCL that waits for a peer may hold up whoever loads code.
  if (const fh_status prepared = fh_private_prepare_elementwise(); prepared != FH_OK)
    return failed("fh_cp_cuda_memory", {prepared, words_of_library()});
  *memory = fh_cp_memory_init();
  memory->fill = fill, memory->copy = copy, memory->add = add, memory->convert = convert, memory->spread = spread;
  return FH_OK;
}
