// SPDX-License-Identifier: Apache-2.0
// runtime: what TMA demands of a tensor, and how one becomes a map.
#include "src/runtime/tensor_map.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "src/base/counted.hpp"
#include "src/base/text.hpp"

namespace froghopper::runtime {

namespace {

constexpr int64_t alignment = 16;                      // of addresses and strides, TMA's and the stores' of o
constexpr int64_t stride_limit = int64_t{1} << 40;     // TMA's
constexpr double coordinate_limit = int64_t{1} << 31;  // coordinates are int

// The ragged map, see ragged_shape.
constexpr int64_t wrap_bytes = int64_t{1} << 34;
constexpr uint64_t any_extent = (uint64_t{1} << 31) - 1;

Failure misfit(std::string what) { return {FH_INVALID_TENSOR, std::move(what)}; }

Result<void> check_stride(const char* tensor, const char* stride, int64_t elements, int64_t extent,
                          int64_t element_bytes) {
  if (extent <= 1) return {};
  const int64_t bytes = elements * element_bytes;
  if (bytes % alignment != 0)
    return misfit(text("{}.{} is {} ({}); TMA reads rows at multiples of 16 bytes. Use a multiple of {} elements.",
                       tensor, stride, counted(elements, "element"), counted(bytes, "byte"),
                       alignment / element_bytes));
  if (elements >= stride_limit / element_bytes)
    return misfit(
        text("{}.{} is {} elements; TMA takes strides below 2^39 elements. Move the pieces of {} closer "
             "together.",
             tensor, stride, elements, tensor));
  return {};
}

// Where an extent is 1, or the tensor is empty, a stride means nothing and may be anything, so a valid one takes its
// place.
int64_t stride_bytes(const View& v, int64_t elements, int64_t extent) {
  return extent <= 1 || v.empty() ? alignment : elements * size_of(v.element);
}

int columns_of_panel(const View& v) { return panel_row_bytes / size_of(v.element); }

uint64_t at_least_one(int64_t extent) { return static_cast<uint64_t>(std::max<int64_t>(1, extent)); }

void set(MapShape& shape, std::initializer_list<uint64_t> extents, std::initializer_list<int64_t> strides,
         int columns, int rows) {
  shape.rank = static_cast<uint32_t>(extents.size());
  std::copy(extents.begin(), extents.end(), shape.extents);
  std::copy(strides.begin(), strides.end(), shape.strides);
  std::fill(shape.box, shape.box + shape.rank, 1u);
  shape.box[0] = static_cast<uint32_t>(columns);
  shape.box[1] = static_cast<uint32_t>(rows);
}

CUtensorMapDataType data_type(Element element) {
  switch (element) {
    case Element::f16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case Element::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case Element::f32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case Element::e4m3:
    case Element::e5m2: return CU_TENSOR_MAP_DATA_TYPE_UINT8;  // TMA knows no smaller values: bytes
    case Element::i32: return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case Element::i64: return CU_TENSOR_MAP_DATA_TYPE_INT64;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

}  // namespace

Result<void> check_layout(const Named& tensor) {
  const auto& [name, view] = tensor;
  if (view.empty()) return {};
  if (reinterpret_cast<uintptr_t>(view.data) % alignment != 0)
    return misfit(text("{}.data must be a multiple of 16 bytes, but is {}. Move {} to an aligned address.", name,
                       fmt::ptr(view.data), name));
  const int64_t bytes = size_of(view.element);
  if (auto ok = check_stride(name, "stride_seq", view.stride_seq, view.seq, bytes); !ok) return ok;
  if (auto ok = check_stride(name, "stride_head", view.stride_head, view.heads, bytes); !ok) return ok;
  return check_stride(name, "stride_batch", view.stride_batch, view.batch, bytes);
}

Result<MapShape> fixed_shape(const Named& tensor, int rows, const void* stand_in) {
  if (auto ok = check_layout(tensor); !ok) return ok.failure();
  const View& v = tensor.view;
  MapShape shape;
  shape.address = v.empty() ? stand_in : v.data;
  set(shape, {at_least_one(v.dim), at_least_one(v.seq), at_least_one(v.heads), at_least_one(v.batch)},
      {stride_bytes(v, v.stride_seq, v.seq), stride_bytes(v, v.stride_head, v.heads),
       stride_bytes(v, v.stride_batch, v.batch)},
      columns_of_panel(v), rows);
  return shape;
}

namespace {

int64_t batch_bytes(const View& v) { return v.batch <= 1 || v.empty() ? 0 : v.stride_batch * size_of(v.element); }

}  // namespace

int64_t granule_bytes(const View& v) { return std::gcd(stride_bytes(v, v.stride_seq, v.seq), batch_bytes(v)); }

Result<void> check_page_rows(const Named& tensor) {
  const auto& [name, v] = tensor;
  const int64_t bytes = granule_bytes(v);
  if (bytes <= std::numeric_limits<int>::max()) return {};
  return misfit(
      text("{}.stride_seq is {} and {}.stride_batch is {}, in elements; pages of so few rows need a greatest common "
           "divisor below 2^31 bytes, but it is {}. Copy {} so that its rows lie one after the other.",
           name, v.stride_seq, name, v.stride_batch, bytes, name));
}

Result<void> check_table(const View& table) {
  if (1.0 * table.stride_seq * (table.seq - 1) < 1.0 * std::numeric_limits<int>::max()) return {};
  return misfit(text(
      "block_table.stride_seq is {}, so the {} entries of a sequence span 2^31 entries or more. Copy the table so "
      "that its columns lie side by side.",
      table.stride_seq, table.seq));
}

// Rows of pages, or of sequences, are as many granules apart as their stride has, and 2^31 are counted. A granule is a
// row where the other stride is a multiple of it; a page of one row has no stride of rows, so there it is 16 bytes.
std::string span_beyond_coordinates(const Named& tensor, int64_t bytes) {
  const auto& [name, v] = tensor;
  if (v.seq <= 1)
    return text(
        "{0}.stride_batch is {1} elements and {0} has {2} x 1 rows, which together span more than 2^31 units of {3} "
        "bytes; units are rows only where a page, or a sequence, has several. Use pages of 2 rows or more, whose "
        "rows lie one after the other, or fewer of them.",
        name, v.stride_batch, v.batch, bytes);
  if (v.stride_seq > 0 && v.stride_batch % v.stride_seq == 0)
    return text(
        "{0}.stride_batch is {1} and {0}.stride_seq is {2}, in elements; {0} spans more than 2^31 rows, which TMA "
        "does not count. Use fewer pages or sequences, or divide them between calls.",
        name, v.stride_batch, v.stride_seq);
  return text(
      "{0}.stride_batch is {1} and {0}.stride_seq is {2}, in elements; together they span more than 2^31 of their "
      "common units of {3} bytes. Make stride_batch a multiple of stride_seq.",
      name, v.stride_batch, v.stride_seq, bytes);
}

// TMA compares coordinates with extents, so for the hardware to see the end of every sequence, the end must lie at the
// extent of a dimension. The row dimension has 2^30 rows, and row r of a sequence of `length` rows is asked for at
// 2^30 - length + r: outside if and only if r >= length. That is 2^30 - length rows too far, so another dimension moves
// the address to the sequence's first row and `length` rows on (in granules: bytes that divide both the row's stride
// and the batch's, as coordinates are integers), and a last one adds 2^30 x (2^34 - row stride), which brings the
// 2^30 rows to 2^64, that is, to 0:
//   address = (2^30 - length + r) row + (first + length row_granules) g + 2^30 (2^34 - row)
//           = first g + r row   modulo 2^64
Result<MapShape> ragged_shape(const Named& tensor, int rows, const void* stand_in) {
  if (auto ok = check_layout(tensor); !ok) return ok.failure();
  const auto& [name, v] = tensor;
  const int64_t row = stride_bytes(v, v.stride_seq, v.seq);
  const int64_t batch = batch_bytes(v);
  if (row == 0 || row >= wrap_bytes)
    return misfit(text(
        "{}.stride_seq must be from 8 to below 2^33 where sequences have lengths of their own, but is {}. Copy {} "
        "so that its rows lie one after the other.",
        name, v.stride_seq, name));
  const int64_t bytes = granule_bytes(v);
  const int64_t row_granules = row / bytes, step = batch / bytes;
  if (1.0 * step * v.batch + 1.0 * row_granules * v.seq >= coordinate_limit)  // in doubles, as it may pass 2^63
    return misfit(span_beyond_coordinates(tensor, bytes));
  MapShape shape;
  shape.address = v.empty() ? stand_in : v.data;
  shape.granules = {.batch = static_cast<int>(step), .row = static_cast<int>(row_granules)};
  set(shape, {at_least_one(v.dim), map_rows, at_least_one(v.heads), any_extent, any_extent},
      {row, stride_bytes(v, v.stride_head, v.heads), bytes, wrap_bytes - row}, columns_of_panel(v), rows);
  return shape;
}

MapShape dense_rows(const void* rows, int64_t count, int floats) {
  MapShape shape;
  shape.address = rows;
  set(shape, {static_cast<uint64_t>(floats), at_least_one(count)}, {floats * int64_t{sizeof(float)}}, floats, 1);
  shape.swizzled = false;
  return shape;
}

Result<void> encode(const Driver& driver, const Named& tensor, const MapShape& shape, TmaMap& map) {
  static_assert(sizeof(CUtensorMap) == sizeof(TmaMap));
  static constexpr cuuint32_t every[5] = {1, 1, 1, 1, 1};
  CUtensorMap encoded;
  const CUresult result = driver.cuTensorMapEncodeTiled(
      &encoded, data_type(tensor.view.element), shape.rank, const_cast<void*>(shape.address), shape.extents,
      shape.strides, shape.box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
      shape.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      shape.ahead ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    const View& v = tensor.view;
    return misfit(
        text("{} of [{}, {}, {}, {}] with strides ({}, {}, {}) is refused as a TMA tensor by the driver: {}. "
             "Copy it to dense memory.",
             tensor.name, v.batch, v.seq, v.heads, v.dim, v.stride_batch, v.stride_seq, v.stride_head,
             driver.words(result)));
  }
  std::memcpy(&map, &encoded, sizeof map);
  return {};
}

}  // namespace froghopper::runtime
