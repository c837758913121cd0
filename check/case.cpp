// SPDX-License-Identifier: Apache-2.0
// check: case lines and case files. Every refusal names the byte where the trouble begins.
#include <algorithm>
#include <charconv>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string_view>

#include "check/check.hpp"
#include "check/data.hpp"
#include "check/layout.hpp"
#include "src/base/counted.hpp"
#include "src/base/printable.hpp"
#include "src/base/text.hpp"
#include "src/problem/line_words.hpp"

namespace froghopper::check {

namespace {

struct Refusal {
  size_t byte;  // of the line
  std::string text;
  fh_status status = FH_INVALID_PROBLEM;
};

// A piece of the line and where it begins there.
struct Word {
  std::string_view text;
  size_t byte;
};

std::vector<Word> words_of(std::string_view line, size_t begin, size_t end) {
  std::vector<Word> words;
  while (begin < end) {
    const size_t from = std::min(line.find_first_not_of(" \t\r", begin), end);
    begin = std::min(line.find_first_of(" \t\r", from), end);
    if (from < begin) words.push_back({line.substr(from, begin - from), from});
  }
  return words;
}

std::string join(const std::vector<Word>& words) {
  std::string all;
  for (const Word& w : words) all.append(all.empty() ? "" : " ").append(w.text);
  return all;
}

std::string names_of(auto&& things, auto name) {
  std::string all;
  for (const auto& thing : things) all.append(all.empty() ? "" : ", ").append(name(thing));
  return all;
}

// "0,7,1023"
Result<std::vector<int64_t>> parse_list(std::string_view value, size_t byte, Refusal& refusal) {
  std::vector<int64_t> list;
  const char *at = value.data(), *end = at + value.size();
  while (true) {
    int64_t n = 0;
    const auto [stop, error] = std::from_chars(at, end, n);
    if (error != std::errc{} || n < 0 || (stop != end && *stop != ',')) {
      refusal = {byte + static_cast<size_t>(at - value.data()),
                 text("\"{}\" is not a list of lengths; it is numbers of at least 0 with commas between. Write "
                      "for instance 0,7,1023.",
                      shown(value))};
      return Failure{FH_INVALID_PROBLEM, refusal.text};
    }
    list.push_back(n);
    if (stop == end) return list;
    at = stop + 1;
  }
}

// One key=value. False: refused.
bool parse_key(const Word& word, Case& c, Refusal& refusal) {
  const size_t equals = word.text.find('=');
  const std::string key(word.text.substr(0, equals));
  const std::string value(equals == std::string_view::npos ? "" : word.text.substr(equals + 1));
  const size_t value_byte = word.byte + key.size() + 1;
  const auto refuse = [&](size_t byte, std::string why) {
    refusal = {byte, std::move(why)};
    return false;
  };
  const auto list_into = [&](std::vector<int64_t>& list) {
    auto parsed = parse_list(value, value_byte, refusal);
    if (parsed) list = std::move(*parsed);
    return static_cast<bool>(parsed);
  };
  if (key == "lens_q") return list_into(c.lens_q);
  if (key == "lens_kv") return list_into(c.lens_kv);
  if (key == "used_q") return list_into(c.used_q);
  if (key == "used_kv") return list_into(c.used_kv);
  if (key == "data") {
    c.data = value;
    if (find_data(value)) return true;
    return refuse(value_byte, text("data={} is unknown; data is one of {}.", shown(value),
                                   names_of(all_data(), [](const Data& d) { return d.name; })));
  }
  if (key == "layout") {
    c.layout = value;
    if (is_layout(value)) return true;
    return refuse(value_byte, text("layout={} is unknown; layout is one of {}.", shown(value),
                                   names_of(all_layouts(), [](const char* name) { return name; })));
  }
  if (key == "rows") {
    c.sample_rows = value == "sample";
    return c.sample_rows ||
           refuse(value_byte, text("rows={} is unknown; rows=sample compares some rows only.", shown(value)));
  }
  if (key == "grad_lse") {
    c.grad_lse = value == "yes";
    if (!c.grad_lse)
      return refuse(value_byte, text("grad_lse={} is unknown; grad_lse=yes gives lse a gradient.", shown(value)));
    return c.problem.backward() || refuse(word.byte, "grad_lse is given, but the problem is not backward. Use bwd.");
  }
  if (key == "only") {
    c.only = value;
    return value == "cpu" || value == "gpu" ||
           refuse(value_byte, text("only={} is unknown; only is cpu or gpu.", shown(value)));
  }
  return refuse(word.byte,
                text("\"{}\" is unknown; after the colon come lens_q=, lens_kv=, used_q=, used_kv=, data=, "
                     "layout=, rows=, grad_lse=, only=.",
                     shown(word.text)));
}

// The lengths of one side against the problem. An empty list is no wish.
bool check_list(const char* name, const std::vector<int64_t>& list, bool wanted, const char* option, int64_t batch,
                int64_t most, int64_t total, std::string& why) {
  if (list.empty()) return true;
  if (!wanted) {
    why = text("{} is given, but the problem has no {}; it needs it. Put {} into the problem.", name, option, option);
  } else if (static_cast<int64_t>(list.size()) != batch) {
    why = text("{} has {} and the problem has b{}; there must be one for every sequence.", name,
               counted(list.size(), "length"), batch);
  } else if (std::ranges::max(list) > most) {
    why = text("{} says {}, but a sequence has at most {} here.", name, std::ranges::max(list), counted(most, "row"));
  } else if (std::accumulate(list.begin(), list.end(), int64_t{0}) > total) {
    why = text("{} adds up to more than the packed tensor has, {}.", name, counted(total, "row"));
  }
  return why.empty();
}

bool check_lists(const Case& c, std::string& why) {
  const Problem& p = c.problem;
  return check_list("lens_q", c.lens_q, p.varlen, "varlen", p.batch, p.seq_q, p.total_q, why) &&
         check_list("lens_kv", c.lens_kv, p.kv_is_packed(), "varlen", p.batch, p.seq_kv, p.total_kv, why) &&
         check_list("used_q", c.used_q, p.seqused, "seqused", p.batch, p.seq_q, p.batch * p.seq_q, why) &&
         check_list("used_kv", c.used_kv, p.seqused, "seqused", p.batch, p.seq_kv, p.batch * p.seq_kv, why);
}

bool parse_at(std::string_view line, Case& c, Refusal& refusal) {
  const size_t hash = std::min(line.find('#'), line.size());
  const size_t colon = std::min(line.find(':'), hash);
  if (hash < line.size()) {
    const auto words = words_of(line, hash + 1, line.size());
    if (!words.empty()) c.reason = line.substr(words.front().byte);
  }
  const auto words = words_of(line, 0, colon);
  const size_t start = words.empty() ? 0 : words.front().byte;
  auto problem = Problem::parse(join(words));
  if (!problem) {
    refusal = {start, in_words_of_lines(problem.failure().text), problem.failure().status};
    return false;
  }
  c.problem = *problem;
  if (colon < hash) {
    for (const Word& word : words_of(line, colon + 1, hash)) {
      if (!parse_key(word, c, refusal)) return false;
    }
  }
  refusal.byte = colon;
  return check_lists(c, refusal.text);
}

}  // namespace

Result<Case> parse_case(const std::string& line) {
  Case c;
  Refusal refusal{};
  if (parse_at(line, c, refusal)) return c;
  return Failure{refusal.status, text("byte {}: {}", refusal.byte, refusal.text)};
}

namespace {

// A device or a pipe may go on forever; the longest file of tests/cases has 35 KB.
constexpr size_t most_bytes = 16 << 20;

Result<std::string> read_bounded(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Failure{FH_INVALID_PROBLEM, text("{} cannot be read; it must be a file of problem lines.", path)};
  std::string bytes, piece(1 << 16, '\0');
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    bytes.append(piece, 0, static_cast<size_t>(file.gcount()));
    if (bytes.size() > most_bytes)
      return Failure{FH_INVALID_PROBLEM,
                     text("{} has more than {} bytes; files of problem lines are shorter. Cut it into parts.", path,
                          most_bytes)};
  }
  // Also on a read that fails, of a folder for instance.
  if (file.bad()) return Failure{FH_INVALID_PROBLEM, text("{}: reading failed at byte {}.", path, bytes.size())};
  if (const size_t zero = bytes.find('\0'); zero != bytes.npos)  // of another program, or UTF-16
    return Failure{FH_INVALID_PROBLEM,
                   text("{} must be a text file of problem lines, but byte {} of it is 0. Write it "
                        "as UTF-8, or name another file.",
                        path, zero)};
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";  // which some editors write
  if (bytes.starts_with(byte_order_mark)) bytes.replace(0, byte_order_mark.size(), byte_order_mark.size(), ' ');
  return bytes;
}

}  // namespace

Result<std::vector<Case>> read_cases(const std::string& path, std::vector<Failure>& wrong) {
  const auto bytes = read_bounded(path);
  if (!bytes) return bytes.failure();
  std::istringstream file(*bytes);
  std::vector<Case> cases;
  std::string line;
  size_t number = 0, begin = 0;
  while (std::getline(file, line)) {
    ++number;
    if (!words_of(line, 0, std::min(line.find('#'), line.size())).empty()) {
      Case c;
      Refusal refusal{};
      if (parse_at(line, c, refusal))
        cases.push_back(std::move(c));
      else
        wrong.push_back(Failure{refusal.status, text("{}, line {}, byte {} of the file: {}", path, number,
                                                     begin + refusal.byte, refusal.text)});
    }
    begin += line.size() + 1;
  }
  return cases;
}

Result<std::vector<Case>> read_cases(const std::string& path) {
  std::vector<Failure> wrong;
  auto cases = read_cases(path, wrong);
  if (!wrong.empty()) return wrong.front();
  return cases;
}

std::string Case::line() const {
  std::string keys;
  const auto add = [&](const char* key, const std::string& value) { keys += text(" {}={}", key, value); };
  const auto add_list = [&](const char* key, const std::vector<int64_t>& list) {
    if (!list.empty()) add(key, joined(list, ","));
  };
  add_list("lens_q", lens_q);
  add_list("lens_kv", lens_kv);
  add_list("used_q", used_q);
  add_list("used_kv", used_kv);
  if (data != "normal") add("data", data);
  if (layout != "bshd") add("layout", layout);
  if (sample_rows) add("rows", "sample");
  if (grad_lse) add("grad_lse", "yes");
  if (!only.empty()) add("only", only);
  return problem.line() + (keys.empty() ? "" : " :" + keys);
}

}  // namespace froghopper::check
