// SPDX-License-Identifier: Apache-2.0
// files: .safetensors. Eight bytes with the length of a header (little endian), the header in JSON, then the tensors'
// bytes without gaps. The header maps each name to dtype, shape and data_offsets, and "__metadata__" to texts.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "files/source.hpp"
#include "src/base/counted.hpp"
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
constexpr uint64_t most_header_bytes = 100'000'000;  // as the format's own reader has it

constexpr const char* metadata_name = "__metadata__";

// Where an entry begins, for messages: the parser does not keep places, so its name is looked up.
size_t place_of(std::string_view header, const std::string& name) {
  const size_t at = header.find(json(name).dump());
  return length_bytes + (at == std::string_view::npos ? 0 : at);
}

struct Entry {
  std::string name;
  FileTensor tensor;  // still without its bytes
  std::vector<int64_t> offsets;

  uint64_t begin() const { return static_cast<uint64_t>(offsets[0]); }
  uint64_t end() const { return static_cast<uint64_t>(offsets[1]); }
};

// Takes the header word by word from the parser and keeps only what an entry says. No tree is made of it: a header may
// be nested as deeply, and have as many names, as its bytes allow. Each function says whether to go on.
class HeaderReader final : public json::json_sax_t {
 public:
  explicit HeaderReader(std::string_view header) : header_(header) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::optional<Failure> failure;

  bool null() override { return value(json()); }
  bool boolean(bool x) override { return value(x); }
  bool number_integer(number_integer_t x) override { return value(x); }
  bool number_unsigned(number_unsigned_t x) override { return value(x); }
  bool number_float(number_float_t x, const string_t&) override { return value(x); }
  bool string(string_t& x) override { return value(x); }
  bool binary(binary_t&) override { return true; }  // JSON has none
  bool start_object(size_t) override { return begin(/*object=*/true); }
  bool start_array(size_t) override { return begin(/*object=*/false); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override;
  bool parse_error(size_t byte, const std::string&, const json::exception& e) override;

 private:
  // What the next word is part of.
  enum class In { nothing, header, metadata, entry, list, ignored };

  bool value(const json&);
  bool begin(bool object);
  bool end();
  bool take_dtype(const json&);
  bool judge(const Entry&);
  bool is_list() const { return field_ == "shape" || field_ == "data_offsets"; }
  bool wrong_list() {
    return field_ == "shape" ? wrong("shape is not a list of numbers of at least 0")
                             : wrong("data_offsets is not a pair of rising numbers of at least 0");
  }
  bool wrong(const std::string& why) {
    failure = refuse(place_of(header_, name_), text("{}: {}", shown(name_), why));
    return false;
  }

  std::string_view header_;
  In in_ = In::nothing;
  int64_t ignored_depth_ = 0;
  std::string name_, field_;  // the last key of the header; the last one of its entry
  std::set<std::string> names_, fields_;
};

bool HeaderReader::key(string_t& name) {
  if (in_ == In::ignored) return true;
  if (in_ == In::header) {
    name_ = name;
    if (names_.insert(name).second) return true;
    failure = refuse(place_of(header_, name), text("the header has two entries {}", shown(name)));
    return false;
  }
  field_ = name;
  return fields_.insert(name).second || wrong(text("{} is there twice", shown(name)));
}

bool HeaderReader::value(const json& x) {
  switch (in_) {
    case In::nothing: failure = refuse(length_bytes, "the header is not a JSON object"); return false;
    case In::header:
      return wrong(name_ == metadata_name ? "it is not an object of texts"
                                          : "an entry needs dtype, shape and data_offsets");
    case In::metadata:
      if (!x.is_string()) return wrong("it is not an object of texts");
      metadata[field_] = x.get<std::string>();
      return true;
    case In::entry: return field_ == "dtype" ? take_dtype(x) : !is_list() || wrong_list();
    case In::list: {
      // Whole numbers of at least 0, as long as they fit into 63 bits.
      if (!x.is_number_unsigned() || x.get<uint64_t>() > INT64_MAX) return wrong_list();
      Entry& entry = entries.back();
      (field_ == "shape" ? entry.tensor.shape : entry.offsets).push_back(x.get<int64_t>());
      return true;
    }
    case In::ignored: return true;
  }
  return false;
}

bool HeaderReader::begin(bool object) {
  if (in_ == In::ignored) {
    ++ignored_depth_;
  } else if (in_ == In::nothing && object) {
    in_ = In::header;
  } else if (in_ == In::header && object) {
    in_ = name_ == metadata_name ? In::metadata : In::entry;
    fields_.clear();
    if (in_ == In::entry) entries.push_back({name_, {}, {}});
  } else if (in_ == In::entry && is_list() && !object) {
    in_ = In::list;
  } else if (in_ == In::entry && field_ != "dtype" && !is_list()) {
    in_ = In::ignored;
    ignored_depth_ = 1;
  } else {
    return value(object ? json::object() : json::array());  // the wrong thing there, as any other
  }
  return true;
}

bool HeaderReader::end() {
  switch (in_) {
    case In::nothing: break;
    case In::header: in_ = In::nothing; break;
    case In::metadata: in_ = In::header; break;
    case In::entry: in_ = In::header; return judge(entries.back());
    case In::list: in_ = In::entry; break;
    case In::ignored:
      if (--ignored_depth_ == 0) in_ = In::entry;
      break;
  }
  return true;
}

bool HeaderReader::take_dtype(const json& x) {
  const auto known = std::ranges::find_if(dtypes, [&](const Name& n) { return x == n.in_file; });
  if (known == std::end(dtypes)) {
    const std::string said = x.is_string() ? shown(x.get<std::string>()) : x.dump();
    return wrong(text("dtype {} is not one of F16, BF16, F32, I32, I64. Convert it", said));
  }
  entries.back().tensor.element = known->element;
  return true;
}

bool HeaderReader::judge(const Entry& entry) {
  for (const char* const field : {"dtype", "shape", "data_offsets"}) {
    if (!fields_.contains(field)) return wrong("an entry needs dtype, shape and data_offsets");
  }
  field_ = "data_offsets";
  if (entry.offsets.size() != 2 || entry.begin() > entry.end()) return wrong_list();
  int64_t bytes = size_of(entry.tensor.element);
  for (const int64_t extent : entry.tensor.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return wrong("shape has more elements than 63 bits count");
  }
  const uint64_t said = entry.end() - entry.begin();
  return static_cast<uint64_t>(bytes) == said ||
         wrong(text("shape and dtype make {}, data_offsets say {}", counted(bytes, "byte"), said));
}

bool HeaderReader::parse_error(size_t byte, const std::string&, const json::exception& e) {
  constexpr size_t most = 200;  // it quotes the file, which may have no end of letters
  failure = refuse(length_bytes + (byte > 0 ? byte - 1 : 0),
                   text("the header is not JSON: {}", std::string_view(e.what()).substr(0, most)));
  return false;
}

// Sorted by place, the tensors' bytes must fill the rest of the file: no overlap, no hole, nothing after them.
std::optional<Failure> wrong_places(std::vector<Entry>& entries, std::string_view header, uint64_t data_bytes) {
  const uint64_t data_begin = length_bytes + header.size();
  std::ranges::sort(entries, {}, &Entry::offsets);
  uint64_t expected = 0;
  for (const Entry& e : entries) {
    if (e.begin() != expected) {
      return refuse(place_of(header, e.name),
                    text("{}: data_offsets begin at {}, but the tensor before ends at {}; tensors lie end to end",
                         shown(e.name), e.begin(), expected));
    }
    if (e.end() > data_bytes) {
      return refuse(data_begin + data_bytes,
                    text("the file ends, but {} goes on to byte {}", shown(e.name), data_begin + e.end()));
    }
    expected = e.end();
  }
  if (expected == data_bytes) return {};
  return refuse(data_begin + expected,
                text("{} the last tensor", counted(data_bytes - expected, "byte follows", "bytes follow")));
}

}  // namespace

Result<TensorFile> parse_safetensors(const Source& source) {
  if (source.size() < length_bytes) return refuse(source.size(), "the file ends within the 8 bytes of header length");
  const auto first = read_bytes(source, 0, length_bytes);
  if (!first) return first.failure();
  uint64_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= uint64_t{(*first)[i]} << 8 * i;
  if (length > source.size() - length_bytes) {
    return refuse(
        0, text("the header has {}, but only {} follow", counted(length, "byte"), source.size() - length_bytes));
  }
  if (length > most_header_bytes) {
    return refuse(0, text("the header has {} bytes; the format allows {}", length, most_header_bytes));
  }
  const auto header = read_text(source, length_bytes, length);
  if (!header) return header.failure();

  HeaderReader read(*header);
  json::sax_parse(*header, &read);
  if (read.failure) return *read.failure;
  const uint64_t data_begin = length_bytes + length;
  if (const auto wrong = wrong_places(read.entries, *header, source.size() - data_begin)) return *wrong;

  TensorFile file;
  file.metadata = std::move(read.metadata);
  for (Entry& e : read.entries) {
    auto bytes = read_bytes(source, data_begin + e.begin(), e.end() - e.begin());
    if (!bytes) return bytes.failure();
    e.tensor.bytes = std::move(*bytes);
    file.tensors[e.name] = std::move(e.tensor);
  }
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
