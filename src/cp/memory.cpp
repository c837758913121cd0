// SPDX-License-Identifier: Apache-2.0
// cp: what a plan on the CPU does to memory in addition to attention.
#include "src/cp/memory.hpp"

#include <cstring>

#include "src/base/storage.hpp"

namespace froghopper::cp {
namespace {

int fill(void*, void* data, uint32_t value, uint64_t words, void*) {
  uint32_t* const to = static_cast<uint32_t*>(data);
  for (uint64_t i = 0; i < words; ++i) to[i] = value;
  return 0;
}

int copy(void*, void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch, uint64_t bytes, uint64_t rows,
         void*) {
  for (uint64_t r = 0; r < rows; ++r)
    std::memcpy(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(from) + r * from_pitch, bytes);
  return 0;
}

int add(void*, float* into, const float* from, uint64_t count, void*) {
  for (uint64_t i = 0; i < count; ++i) into[i] += from[i];
  return 0;
}

int convert(void*, void* to, fh_dtype dtype, const float* from, uint64_t count, void*) {
  uint16_t* const out = static_cast<uint16_t*>(to);
  if (dtype == FH_BF16)
    for (uint64_t i = 0; i < count; ++i) out[i] = float_to_bf16(from[i]);
  else
    for (uint64_t i = 0; i < count; ++i) out[i] = float_to_f16(from[i]);
  return 0;
}

int spread(void*, float* to, const float* from, uint64_t rows, uint64_t columns, void*) {
  for (uint64_t r = 0; r < rows; ++r)
    for (uint64_t i = 0; i < columns; ++i) to[r * columns + i] = from[r];
  return 0;
}

}  // namespace

fh_cp_memory host_memory() {
  fh_cp_memory m = fh_cp_memory_init();
  m.fill = fill, m.copy = copy, m.add = add, m.convert = convert, m.spread = spread;
  return m;
}

}  // namespace froghopper::cp
