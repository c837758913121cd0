// SPDX-License-Identifier: Apache-2.0
// tests: safetensors and npy. What is written is read back; every malformed file is refused with the byte where it goes
// wrong; and whatever bytes a file has, reading it ends in one of the two.
#include "files/tensor_file.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "src/base/text.hpp"

namespace froghopper::files {
namespace {

FileTensor tensor_of(Element element, std::vector<int64_t> shape) {
  FileTensor t{element, std::move(shape), {}};
  int64_t bytes = size_of(element);
  for (const int64_t extent : t.shape) bytes *= extent;
  for (int64_t i = 0; i < bytes; ++i) t.bytes.push_back(static_cast<unsigned char>(i * 7));
  return t;
}

std::string safetensors(const std::string& header, const std::string& data) {
  std::string file;
  for (size_t i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> 8 * i & 0xff);
  return file + header + data;
}

std::string npy(const std::string& header, const std::string& data) {
  std::string file = "\x93NUMPY";
  file += {'\1', '\0', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  return file + header + data;
}

TEST(Safetensors, come_back_as_they_were_written) {
  TensorFile file;
  file.metadata = {{"tokens", "[\"a\", \"\\u00e4\"]"}, {"empty", ""}};
  file.tensors["q"] = tensor_of(Element::f16, {2, 3, 4, 8});
  file.tensors["k with \"quotes\""] = tensor_of(Element::bf16, {5, 8});
  file.tensors["none"] = tensor_of(Element::f32, {0, 8});
  file.tensors["number"] = tensor_of(Element::i64, {});
  file.tensors["cu_seqlens"] = tensor_of(Element::i32, {7});
  const std::string bytes = print_safetensors(file);
  const auto read = parse_safetensors(bytes);
  ASSERT_TRUE(read) << read.failure().text;
  EXPECT_EQ(read->metadata, file.metadata);
  ASSERT_EQ(read->tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    EXPECT_EQ(read->tensors.at(name).element, tensor.element) << name;
    EXPECT_EQ(read->tensors.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(read->tensors.at(name).bytes, tensor.bytes) << name;
  }
}

TEST(Npy, comes_back_as_it_was_written) {
  for (const Element element : {Element::f16, Element::f32, Element::i32, Element::i64}) {
    for (const auto& shape : {std::vector<int64_t>{2, 3, 4}, {7}, {}, {0, 3}}) {
      const FileTensor tensor = tensor_of(element, shape);
      const auto bytes = print_npy(tensor);
      ASSERT_TRUE(bytes);
      const auto read = parse_npy(*bytes);
      ASSERT_TRUE(read) << read.failure().text << "\n" << *bytes;
      EXPECT_EQ(read->element, tensor.element);
      EXPECT_EQ(read->shape, tensor.shape);
      EXPECT_EQ(read->bytes, tensor.bytes);
    }
  }
  EXPECT_FALSE(print_npy(tensor_of(Element::bf16, {2})));
}

struct Malformed {
  const char* what;
  std::string file;
  size_t byte;
  const char* says;
};

template <class Parsed>
void expect_refused(const Malformed& m, const Parsed& parsed) {
  ASSERT_FALSE(parsed) << m.what;
  EXPECT_EQ(parsed.failure().status, FH_INVALID_TENSOR);
  EXPECT_EQ(parsed.failure().text.find(text("byte {}: ", m.byte)), 0u) << m.what << ": " << parsed.failure().text;
  EXPECT_NE(parsed.failure().text.find(m.says), std::string::npos) << m.what << ": " << parsed.failure().text;
}

const std::string q4 = R"({"q":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})";

std::vector<Malformed> malformed_safetensors() {
  const auto entry = [](const char* dtype, const char* shape, const char* offsets) {
    return text(R"({{"q":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  const std::string two = R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},)";
  std::string huge_length = safetensors(q4, "1234");
  huge_length.replace(0, 8, std::string(8, '\xff'));
  return {
      {"nothing", "", 0, "ends within"},
      {"truncated length", std::string("\x10\0\0", 3), 3, "ends within"},
      {"truncated header", safetensors(q4, "").substr(0, 30), 0, "the header has 54 bytes, but only 22 follow"},
      {"header beyond the file", huge_length, 0, "the header has 18446744073709551615 bytes"},
      {"no JSON", safetensors("{\"q\" 1}", ""), 8 + 5, "not JSON"},
      {"no UTF-8", safetensors("{\"\xff\":1}", ""), 8 + 2, "not JSON"},
      {"a list", safetensors("[1, 2]", ""), 8, "not a JSON object"},
      {"no entry", safetensors(R"({"q":7})", ""), 9, "needs dtype, shape and data_offsets"},
      {"no shape", safetensors(R"({"q":{"dtype":"F16","data_offsets":[0,4]}})", "1234"), 9, "needs dtype"},
      {"wrong dtype", safetensors(entry("\"F8_E4M3\"", "[4]", "[0,4]"), "1234"), 9,
       "dtype \"F8_E4M3\" is not one of"},
      {"dtype a number", safetensors(entry("16", "[2]", "[0,4]"), "1234"), 9, "dtype 16 is not one of"},
      {"negative extent", safetensors(entry("\"F16\"", "[-2]", "[0,4]"), "1234"), 9, "shape is not a list"},
      {"broken extent", safetensors(entry("\"F16\"", "[2.5]", "[0,4]"), "1234"), 9, "shape is not a list"},
      {"extent beyond 63 bits", safetensors(entry("\"F16\"", "[18446744073709551615]", "[0,4]"), "1234"), 9, "shape"},
      {"product beyond 63 bits", safetensors(entry("\"F16\"", "[4294967296,4294967296]", "[0,4]"), "1234"), 9,
       "more elements than 63 bits"},
      {"shape and offsets", safetensors(entry("\"F16\"", "[3]", "[0,4]"), "1234"), 9,
       "shape and dtype make 6 bytes, data_offsets say 4"},
      {"one offset", safetensors(entry("\"F16\"", "[2]", "[4]"), "1234"), 9, "data_offsets is not a pair"},
      {"falling offsets", safetensors(entry("\"F16\"", "[2]", "[4,0]"), "1234"), 9, "data_offsets is not a pair"},
      {"beyond the file", safetensors(q4, "12"), 8 + q4.size() + 2, "the file ends, but \"q\" goes on"},
      {"bytes after", safetensors(q4, "123456"), 8 + q4.size() + 4, "2 bytes follow the last tensor"},
      {"overlap", safetensors(two + R"("b":{"dtype":"F16","shape":[2],"data_offsets":[2,6]}})", "123456"),
       8 + two.size(), "\"b\": data_offsets begin at 2, but the tensor before ends at 4"},
      {"a hole", safetensors(two + R"("b":{"dtype":"F16","shape":[2],"data_offsets":[6,10]}})", "1234567890"),
       8 + two.size(), "\"b\": data_offsets begin at 6"},
      {"twice", safetensors(two + R"("a":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})", "12345678"), 9,
       "two entries \"a\""},
      {"dtype twice", safetensors(R"({"q":{"dtype":"I32","dtype":"F16","shape":[2],"data_offsets":[0,4]}})", "1234"),
       9, "\"q\": \"dtype\" is there twice"},
      {"a list in the shape", safetensors(entry("\"F16\"", "[[2]]", "[0,4]"), "1234"), 9, "shape is not a list"},
      {"a shape of its own kind", safetensors(entry("\"F16\"", "{\"n\":2}", "[0,4]"), "1234"), 9,
       "shape is not a list"},
      {"three offsets", safetensors(entry("\"F16\"", "[2]", "[0,4,4]"), "1234"), 9, "data_offsets is not a pair"},
      {"a name that would clear the screen", safetensors(R"({"\u001b[2J":7})", ""), 9, R"("\u001b[2J": an entry)"},
      {"a metadata text twice", safetensors(R"({"__metadata__":{"a":"1","a":"2"}})", ""), 9, "\"a\" is there twice"},
      {"metadata", safetensors(R"({"__metadata__":{"a":1}})", ""), 9,
       "\"__metadata__\": it is not an object of texts"},
  };
}

TEST(Safetensors, that_are_malformed_are_refused_with_the_byte) {
  for (const Malformed& m : malformed_safetensors()) expect_refused(m, parse_safetensors(m.file));
}

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(Safetensors, may_be_nested_as_deeply_as_they_like) {
  constexpr size_t depth = 100'000;  // a function that calls itself once a level has no stack for it
  const auto with = [](const std::string& dtype, const std::string& rest) {
    return safetensors(text(R"({{"q":{{"dtype":{},"shape":[2],"data_offsets":[0,4]{}}}}})", dtype, rest), "1234");
  };
  const auto refused = parse_safetensors(with(nested(depth), ""));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().text, R"(byte 9: "q": dtype [] is not one of F16, BF16, F32, I32, I64. Convert it)");
  // What other programs add to an entry is passed over.
  const auto read = parse_safetensors(with("\"F16\"", R"(,"more":{"dtype":)" + nested(depth) + "}"));
  ASSERT_TRUE(read) << read.failure().text;
  EXPECT_EQ(read->tensors.at("q").shape, std::vector<int64_t>{2});
}

TEST(Safetensors, with_many_names_are_read_in_no_time) {
  std::string header = "{";
  constexpr int names = 30'000;
  for (int i = 0; i < names; ++i) {
    header += text(R"({}"tensor {}":{{"dtype":"F16","shape":[0],"data_offsets":[0,0]}})", i > 0 ? "," : "", i);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto read = parse_safetensors(safetensors(header + "}", ""));
  ASSERT_TRUE(read) << read.failure().text;
  EXPECT_EQ(read->tensors.size(), size_t{names});
  // 0.03 s; 19 s where every name is compared with all before it.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
}

TEST(Safetensors, whose_names_are_long_are_refused_in_short) {
  const auto read = parse_safetensors(safetensors("{\"" + std::string(1'000'000, 'x') + "\":7}", ""));
  ASSERT_FALSE(read);
  EXPECT_LT(read.failure().text.size(), 200u);
}

std::vector<Malformed> malformed_npy() {
  const auto header = [](const char* descr, const char* order, const char* shape) {
    return text("{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}\n", descr, order, shape);
  };
  const std::string fine = header("'<f2'", "False", "(2,)");
  std::string version = npy(fine, "1234"), beyond = version;
  version[6] = 9;
  beyond[9] = 0x7f;
  return {
      {"nothing", "", 0, "does not begin with"},
      {"another format", "PK\3\4 and so on", 0, "does not begin with"},
      {"no length", std::string("\x93NUMPY\1\0\1", 9), 9, "ends before its header"},
      {"unknown version", version, 6, "the version must be 1, 2 or 3, but is 9"},
      {"header beyond the file", beyond, 8, "bytes, but only"},
      {"a header longer than any of a plain type", std::string("\x93NUMPY\2\0\0\0\1\0", 12) + std::string(65536, ' '),
       8, "65536 bytes; that of a plain type"},
      {"no dictionary", npy("[1]", ""), 10, "not a dictionary"},
      {"big endian", npy(header("'>f2'", "False", "(2,)"), "1234"), 20, "big endian"},
      {"a type of eight bytes", npy(header("'<f8'", "False", "(2,)"), "1234"), 20,
       "descr must be <f2, <f4, <i4 or <i8, but is \"<f8\""},
      {"objects", npy(header("'|O'", "False", "(2,)"), "1234"), 20,
       "descr must be <f2, <f4, <i4 or <i8, but is \"|O\""},
      {"records", npy(header("[('a', '<f2')]", "False", "(2,)"), "1234"), 20, "descr is not a text"},
      {"Fortran order", npy(header("'<f2'", "True", "(2,)"), "1234"), 44, "fortran_order is True"},
      {"no order", npy(header("'<f2'", "0", "(2,)"), "1234"), 44, "neither True nor False"},
      {"no tuple", npy(header("'<f2'", "False", "2"), "1234"), 60, "shape is not a tuple"},
      {"negative extent", npy(header("'<f2'", "False", "(-2,)"), "1234"), 61, "no number of at least 0"},
      {"huge extent", npy(header("'<f2'", "False", "(99999999999999999999,)"), "1234"), 61,
       "no number of at least 0"},
      {"product", npy(header("'<f2'", "False", "(4294967296, 4294967296)"), "1234"), 10,
       "more elements than 63 bits"},
      {"truncated data", npy(fine, "123"), 10 + fine.size(), "shape and descr make 4 bytes, but 3 follow"},
      {"bytes after", npy(fine, "12345"), 10 + fine.size(), "shape and descr make 4 bytes, but 5 follow"},
      {"nothing but descr", npy("{'descr': '<f2'}", "1234"), 26, "needs descr, fortran_order and shape"},
      {"twice", npy("{'descr': '<f2', 'descr': '<f2'}", "1234"), 27, "two entries \"descr\""},
      {"unknown entry", npy("{'colour': 'red'}", "1234"), 11, "unknown entry \"colour\""},
      {"open end", npy("{'descr': '<f2', 'fortran_order': False, 'shape': (2,", "1234"), 63, "no number"},
      {"text after", npy(fine.substr(0, fine.size() - 1) + "x", "1234"), 10 + fine.size() - 1,
       "after the dictionary"},
  };
}

TEST(Npy, that_is_malformed_is_refused_with_the_byte) {
  for (const Malformed& m : malformed_npy()) expect_refused(m, parse_npy(m.file));
}

// Either it is read, or refused with a byte within the file or right after it.
template <class Parse>
void fuzz(const std::string& good, Parse parse) {
  std::mt19937 random(1);
  const auto below = [&](size_t n) { return random() % n; };
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (size_t edits = 1 + below(4); edits > 0; --edits) {
      const size_t at = below(bytes.size() + 1);
      switch (below(4)) {
        case 0: bytes.resize(at); break;
        case 1: bytes.insert(at, 1, static_cast<char>(random())); break;
        case 2:
          if (at < bytes.size()) bytes[at] = static_cast<char>(random());
          break;
        default:
          if (at < bytes.size()) bytes[at] = "0123456789[]{}(),:'\"-"[below(21)];
          break;
      }
    }
    const auto parsed = parse(bytes);
    if (parsed) continue;
    ++refused;
    const std::string& why = parsed.failure().text;
    ASSERT_EQ(why.find("byte "), 0u) << why;
    ASSERT_LE(std::stoull(why.substr(5)), bytes.size()) << why;
  }
  EXPECT_GT(refused, 10000);
}

TEST(Safetensors, survive_any_bytes) {
  TensorFile file;
  file.metadata["tokens"] = "[]";
  file.tensors["q"] = tensor_of(Element::f16, {1, 2, 8});
  file.tensors["cu_seqlens"] = tensor_of(Element::i32, {2});
  fuzz(print_safetensors(file), [](const std::string& bytes) { return parse_safetensors(bytes); });
}

TEST(Npy, survives_any_bytes) {
  fuzz(*print_npy(tensor_of(Element::f16, {2, 8})), [](const std::string& bytes) { return parse_npy(bytes); });
}

}  // namespace
}  // namespace froghopper::files
