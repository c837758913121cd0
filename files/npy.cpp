// SPDX-License-Identifier: Apache-2.0
// files: .npy. The bytes "\x93NUMPY", two of version, the length of a header (two bytes little endian, from version 2
// on four), the header as a Python dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, and then the
// numbers.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "files/source.hpp"
#include "src/base/counted.hpp"
#include "src/base/text.hpp"

namespace froghopper::files {

namespace {

constexpr std::string_view magic = "\x93NUMPY";
// What version 1 can say. Longer ones are for records, which are not read.
constexpr size_t most_header_bytes = 65535;

struct Name {
  const char* in_file;
  Element element;
};
constexpr Name dtypes[] = {
    {"<f2", Element::f16}, {"<f4", Element::f32}, {"<i4", Element::i32}, {"<i8", Element::i64}};

// Reads the dictionary left to right; at() is where the next word begins in the file.
struct Reader {
  std::string_view header;
  size_t header_begin, next = 0;

  size_t at() {
    skip_blanks();
    return header_begin + next;
  }
  void skip_blanks() {
    while (next < header.size() && (header[next] == ' ' || header[next] == '\n')) ++next;
  }
  bool take(std::string_view word) {
    skip_blanks();
    if (!header.substr(next).starts_with(word)) return false;
    next += word.size();
    return true;
  }
  // 'text' or "text"
  std::optional<std::string> take_text() {
    skip_blanks();
    if (next >= header.size() || (header[next] != '\'' && header[next] != '"')) return {};
    const size_t end = header.find(header[next], next + 1);
    if (end == std::string_view::npos) return {};
    std::string value(header.substr(next + 1, end - next - 1));
    next = end + 1;
    return value;
  }
  std::optional<int64_t> take_number() {
    skip_blanks();
    int64_t n = 0;
    const auto [end, error] = std::from_chars(header.data() + next, header.data() + header.size(), n);
    if (error != std::errc{} || n < 0) return {};
    next = static_cast<size_t>(end - header.data());
    return n;
  }
};

std::optional<Failure> read_descr(Reader& in, FileTensor& tensor) {
  const size_t at = in.at();
  const auto descr = in.take_text();
  if (!descr) return refuse(at, "descr is not a text; only plain types are read, not records");
  if (descr->starts_with('>')) {
    return refuse(at, text("descr is {}, big endian; only little endian is read. Save it with astype({})",
                           shown(*descr), shown(text("<{}", descr->substr(1)))));
  }
  const auto known = std::ranges::find_if(dtypes, [&](const Name& n) { return *descr == n.in_file; });
  if (known == std::end(dtypes)) {
    return refuse(at,
                  text("descr must be <f2, <f4, <i4 or <i8, but is {}. Save it with astype(np.float32), or with bf16 "
                       "as .safetensors",
                       shown(*descr)));
  }
  tensor.element = known->element;
  return {};
}

std::optional<Failure> read_order(Reader& in) {
  const size_t at = in.at();
  if (in.take("False")) return {};
  if (in.take("True")) return refuse(at, "fortran_order is True; only C order is read. Save np.ascontiguousarray(x)");
  return refuse(at, "fortran_order is neither True nor False");
}

std::optional<Failure> read_shape(Reader& in, FileTensor& tensor) {
  if (!in.take("(")) return refuse(in.at(), "shape is not a tuple");
  while (!in.take(")")) {
    const auto extent = in.take_number();
    if (!extent) return refuse(in.at(), "shape has something that is no number of at least 0");
    tensor.shape.push_back(*extent);
    if (in.take(",")) continue;
    if (in.take(")")) break;
    return refuse(in.at(), "shape has no comma or closing bracket");
  }
  return {};
}

std::optional<Failure> read_dictionary(Reader& in, FileTensor& tensor) {
  if (!in.take("{")) return refuse(in.at(), "the header is not a dictionary");
  std::map<std::string, int> seen;
  while (!in.take("}")) {
    const size_t at = in.at();
    const auto key = in.take_text();
    if (!key || !in.take(":")) return refuse(at, "the header has something that is no key with a colon");
    if (++seen[*key] > 1) return refuse(at, text("the header has two entries {}", shown(*key)));
    std::optional<Failure> failure;
    if (*key == "descr") {
      failure = read_descr(in, tensor);
    } else if (*key == "fortran_order") {
      failure = read_order(in);
    } else if (*key == "shape") {
      failure = read_shape(in, tensor);
    } else {
      failure = refuse(at, text("the header has an unknown entry {}", shown(*key)));
    }
    if (failure) return failure;
    if (in.take(",")) continue;
    if (in.take("}")) break;
    return refuse(in.at(), "the header has no comma or closing brace");
  }
  if (seen.size() != 3) return refuse(in.at(), "the header needs descr, fortran_order and shape");
  in.skip_blanks();
  if (in.next != in.header.size()) return refuse(in.at(), "text after the dictionary");
  return {};
}

}  // namespace

Result<FileTensor> parse_npy(const Source& source) {
  const uint64_t file_bytes = source.size();
  const auto first = read_text(source, 0, std::min<uint64_t>(file_bytes, magic.size() + 6));
  if (!first) return first.failure();
  if (!first->starts_with(magic)) return refuse(0, "the file does not begin with \\x93NUMPY");
  const auto byte = [&](size_t i) { return size_t{static_cast<unsigned char>((*first)[i])}; };
  if (file_bytes < 10) return refuse(file_bytes, "the file ends before its header");
  const size_t version = byte(6);
  if (version < 1 || version > 3) return refuse(6, text("the version must be 1, 2 or 3, but is {}", version));
  const size_t length_bytes = version == 1 ? 2 : 4, begin = 8 + length_bytes;
  if (file_bytes < begin) return refuse(file_bytes, "the file ends within the length of its header");
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= byte(8 + i) << 8 * i;
  if (length > file_bytes - begin) {
    return refuse(8, text("the header has {}, but only {} follow", counted(length, "byte"), file_bytes - begin));
  }
  if (length > most_header_bytes) {
    return refuse(8, text("the header has {} bytes; that of a plain type has {} at most", length, most_header_bytes));
  }

  const auto header = read_text(source, begin, length);
  if (!header) return header.failure();
  FileTensor tensor;
  Reader in{*header, begin};
  if (const auto failure = read_dictionary(in, tensor)) return *failure;
  int64_t size = size_of(tensor.element);
  for (const int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(size, extent, &size))
      return refuse(begin, "shape has more elements than 63 bits count");
  }
  const uint64_t data_begin = begin + length, data_bytes = file_bytes - data_begin;
  if (static_cast<uint64_t>(size) != data_bytes) {
    return refuse(data_begin, text("shape and descr make {}, but {} follow", counted(size, "byte"), data_bytes));
  }
  auto data = read_bytes(source, data_begin, data_bytes);
  if (!data) return data.failure();
  tensor.bytes = std::move(*data);
  return tensor;
}

Result<std::string> print_npy(const FileTensor& tensor) {
  const auto known = std::ranges::find(dtypes, tensor.element, &Name::element);
  if (known == std::end(dtypes)) {
    return Failure{FH_INVALID_TENSOR,
                   text(".npy has no {}; it holds fp16 and fp32. Write .safetensors.", name_of(tensor.element))};
  }
  std::string header = text("{{'descr': '{}', 'fortran_order': False, 'shape': (", known->in_file);
  for (const int64_t extent : tensor.shape) header += text("{}, ", extent);
  header += "), }";
  // Numbers begin at a multiple of 64 bytes, which is what the format asks for; the header ends in a newline.
  constexpr size_t before = 10, alignment = 64;
  header.append((alignment - (before + header.size() + 1) % alignment) % alignment, ' ');
  header += '\n';
  std::string out(magic);
  out += {'\1', '\0', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  out += header;
  out.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  return out;
}

}  // namespace froghopper::files
