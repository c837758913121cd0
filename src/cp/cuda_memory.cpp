// SPDX-License-Identifier: Apache-2.0
// cp: fill and copy in GPU memory, by the driver.
#include <froghopper/cp.h>

#include "src/cp/driver.hpp"
#include "src/cp/errors.hpp"

namespace froghopper::cp {
namespace {

// The largest distance of rows that every GPU's driver copies in one call.
constexpr uint64_t most_pitch = 0x7fffffff;

// The functions are the same whichever call finds them.
Result<Driver>& driver() {
  static Result<Driver> found = find_driver(nullptr);
  return found;
}

CUdeviceptr address(const void* data, uint64_t bytes = 0) { return reinterpret_cast<uintptr_t>(data) + bytes; }

int fill(void*, void* data, uint32_t value, uint64_t words, void* stream) {
  return driver()->memset_d32(address(data), value, words, static_cast<CUstream>(stream));
}

int copy(void*, void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch, uint64_t bytes, uint64_t rows,
         void* stream) {
  const CUstream s = static_cast<CUstream>(stream);
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

}  // namespace
}  // namespace froghopper::cp

fh_status fh_cp_cuda_memory(fh_cp_memory* memory) {
  using namespace froghopper::cp;
  if (memory == nullptr) return failed("fh_cp_cuda_memory", {FH_INVALID_TENSOR, "memory is NULL."});
  if (!driver()) return failed("fh_cp_cuda_memory", driver().failure());
  *memory = fh_cp_memory_init();
  memory->fill = fill, memory->copy = copy;
  return FH_OK;
}
