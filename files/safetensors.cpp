// SPDX-License-Identifier: Apache-2.0
// files: .safetensors. Eight bytes with the length of a header (little endian), the header in JSON, then the tensors'
// bytes without gaps. The header maps each name to dtype, shape and data_offsets, and "__metadata__" to texts.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "files/tensor_file.hpp"
#include "src/base/text.hpp"

namespace froghopper::files {

namespace {

using nlohmann::json;

struct Name {
  const char* in_file;
  Element element;
};
constexpr Name dtypes[] = {{"F16", Element::f16},
                           {"BF16", Element::bf16},
                           {"F32", Element::f32},
                           {"I32", Element::i32},
                           {"I64", Element::i64}};

constexpr size_t length_bytes = 8;

Failure refuse(size_t byte, const std::string& why) { return {FH_INVALID_TENSOR, text("byte {}: {}", byte, why)}; }

// Where an entry stands, for messages: the parser does not keep places, so its name is looked up.
size_t place_of(std::string_view header, const std::string& name) {
  const size_t at = header.find(json(name).dump());
  return length_bytes + (at == std::string_view::npos ? 0 : at);
}

// The header as a JSON object without repeated names.
Result<json> parse_header(std::string_view header) {
  std::set<std::string> seen;
  std::string repeated;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::key && depth == 1 && !seen.insert(value.get<std::string>()).second) {
      repeated = value.get<std::string>();
    }
    return true;
  };
  try {
    json parsed = json::parse(header, watch);
    if (!parsed.is_object()) return refuse(length_bytes, "the header is not a JSON object");
    if (!repeated.empty()) {
      return refuse(place_of(header, repeated), text("the header has two entries \"{}\"", repeated));
    }
    return parsed;
  } catch (const json::exception& e) {
    const auto* at = dynamic_cast<const json::parse_error*>(&e);
    return refuse(length_bytes + (at && at->byte > 0 ? at->byte - 1 : 0),
                  text("the header is not JSON: {}", e.what()));
  }
}

struct Entry {
  std::string name;
  FileTensor tensor;  // still without its bytes
  uint64_t begin, end;
};

// Whole numbers of at least 0, as long as they fit into 63 bits.
bool read_numbers(const json& list, std::vector<int64_t>& out) {
  if (!list.is_array()) return false;
  for (const json& n : list) {
    if (!n.is_number_unsigned() || n.get<uint64_t>() > INT64_MAX) return false;
    out.push_back(n.get<int64_t>());
  }
  return true;
}

Result<Entry> read_entry(std::string_view header, const std::string& name, const json& value) {
  const auto wrong = [&](const std::string& why) { return refuse(place_of(header, name), name + ": " + why); };
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets")) {
    return wrong("an entry needs dtype, shape and data_offsets");
  }
  Entry entry{name, {}, 0, 0};
  const json& dtype = value["dtype"];
  const auto known = std::ranges::find_if(dtypes, [&](const Name& n) { return dtype == n.in_file; });
  if (known == std::end(dtypes)) return wrong(text("dtype {} is not one of F16, BF16, F32, I32, I64", dtype.dump()));
  entry.tensor.element = known->element;
  if (!read_numbers(value["shape"], entry.tensor.shape)) return wrong("shape is not a list of numbers of at least 0");
  std::vector<int64_t> offsets;
  if (!read_numbers(value["data_offsets"], offsets) || offsets.size() != 2 || offsets[0] > offsets[1]) {
    return wrong("data_offsets is not a pair of rising numbers of at least 0");
  }
  entry.begin = static_cast<uint64_t>(offsets[0]);
  entry.end = static_cast<uint64_t>(offsets[1]);
  int64_t bytes = size_of(entry.tensor.element);
  for (const int64_t extent : entry.tensor.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return wrong("shape has more elements than 63 bits count");
  }
  if (static_cast<uint64_t>(bytes) != entry.end - entry.begin) {
    return wrong(text("shape and dtype make {} bytes, data_offsets say {}", bytes, entry.end - entry.begin));
  }
  return entry;
}

Result<std::map<std::string, std::string>> read_metadata(std::string_view header, const json& value) {
  std::map<std::string, std::string> metadata;
  const bool texts = value.is_object() && std::ranges::all_of(value, [](const json& v) { return v.is_string(); });
  if (!texts) return refuse(place_of(header, "__metadata__"), "__metadata__ is not an object of texts");
  for (const auto& [key, one] : value.items()) metadata[key] = one.get<std::string>();
  return metadata;
}

// Sorted by place, the tensors' bytes must fill the rest of the file: no overlap, no hole, nothing behind.
Result<void> take_bytes(std::vector<Entry>& entries, std::string_view header, std::string_view data,
                        TensorFile& file) {
  const size_t data_begin = length_bytes + header.size();
  std::ranges::sort(
      entries, [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t expected = 0;
  for (Entry& e : entries) {
    if (e.begin != expected) {
      return refuse(place_of(header, e.name),
                    text("{}: data_offsets begin at {}, but the tensor before ends at {}; tensors lie end to end",
                         e.name, e.begin, expected));
    }
    if (e.end > data.size()) {
      return refuse(data_begin + data.size(),
                    text("the file ends, but {} goes on to byte {}", e.name, data_begin + e.end));
    }
    const auto* from = reinterpret_cast<const unsigned char*>(data.data()) + e.begin;
    e.tensor.bytes.assign(from, from + (e.end - e.begin));
    expected = e.end;
    file.tensors[e.name] = std::move(e.tensor);
  }
  if (expected != data.size()) {
    return refuse(data_begin + expected, text("{} bytes behind the last tensor", data.size() - expected));
  }
  return {};
}

}  // namespace

Result<TensorFile> parse_safetensors(std::string_view bytes) {
  if (bytes.size() < length_bytes) return refuse(bytes.size(), "the file ends within the 8 bytes of header length");
  uint64_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= uint64_t{static_cast<unsigned char>(bytes[i])} << 8 * i;
  if (length > bytes.size() - length_bytes) {
    return refuse(0, text("the header has {} bytes, but only {} follow", length, bytes.size() - length_bytes));
  }
  const std::string_view header = bytes.substr(length_bytes, length);
  const auto parsed = parse_header(header);
  if (!parsed) return parsed.failure();

  TensorFile file;
  std::vector<Entry> entries;
  for (const auto& [name, value] : parsed->items()) {
    if (name == "__metadata__") {
      auto metadata = read_metadata(header, value);
      if (!metadata) return metadata.failure();
      file.metadata = std::move(*metadata);
      continue;
    }
    auto entry = read_entry(header, name, value);
    if (!entry) return entry.failure();
    entries.push_back(std::move(*entry));
  }
  const auto taken = take_bytes(entries, header, bytes.substr(length_bytes + length), file);
  if (!taken) return taken.failure();
  return file;
}

std::string print_safetensors(const TensorFile& file) {
  nlohmann::ordered_json header;
  if (!file.metadata.empty()) header["__metadata__"] = file.metadata;
  uint64_t begin = 0;
  for (const auto& [name, tensor] : file.tensors) {
    const auto dtype = std::ranges::find(dtypes, tensor.element, &Name::element);
    header[name] = {
        {"dtype", dtype->in_file}, {"shape", tensor.shape}, {"data_offsets", {begin, begin + tensor.bytes.size()}}};
    begin += tensor.bytes.size();
  }
  // Not every text is UTF-8; what is not is replaced rather than thrown at us.
  std::string json_text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  json_text.append((8 - json_text.size() % 8) % 8, ' ');  // readers that map the file want aligned tensors
  std::string out;
  for (size_t i = 0; i < length_bytes; ++i) out.push_back(static_cast<char>(json_text.size() >> 8 * i & 0xff));
  out += json_text;
  for (const auto& [name, tensor] : file.tensors) {
    out.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return out;
}

}  // namespace froghopper::files
