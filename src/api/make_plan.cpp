// SPDX-License-Identifier: Apache-2.0
// api: which backend computes a problem. The user says where, or "auto": the Hopper GPU if there is one and it can,
// else the CPU, with the reason kept.
#include <algorithm>
#include <array>
#include <cctype>

#include "src/api/run.hpp"
#include "src/base/log.hpp"
#include "src/base/near_word.hpp"
#include "src/base/printable.hpp"
#include "src/base/text.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper {
namespace {

// A plan for a GPU that need not be here.
Result<fh_plan> plan_for(const Problem& problem, const Device& device, const Hints& hints) {
  auto plan = make_gpu_plan(problem, device, hints);
  if (!plan) return plan.failure();
  std::string line = plan->line();
  return fh_plan{.how = std::move(*plan), .runs_here = false, .why_cpu = {}, .line = std::move(line)};
}

Result<fh_plan> plan_on_gpu(const Problem& problem, int ordinal, const Hints& hints) {
  const auto device = runtime::device(ordinal);
  if (!device) return device.failure();
  auto plan = plan_for(problem, *device, hints);
  if (!plan) return plan;
  const auto prepared = runtime::prepare(*plan->gpu(), device->ordinal);
  if (!prepared) return prepared.failure();
  plan->runs_here = true;
  if (log_wanted()) log(text("plan: {}", plan->line));
  return plan;
}

Result<fh_plan> plan_on_cpu(const Problem& problem) {
  auto plan = cpu::plan(problem);
  if (!plan) return plan.failure();
  std::string line = plan->line();
  if (log_wanted()) log(text("plan: {}", line));
  return fh_plan{.how = std::move(*plan), .runs_here = true, .why_cpu = {}, .line = std::move(line)};
}

Result<fh_plan> plan_anywhere(const Problem& problem, const Target& target) {
  auto on_gpu = plan_on_gpu(problem, target.ordinal, target.hints);
  if (on_gpu) return on_gpu;
  auto plan = plan_on_cpu(problem);
  if (!plan) return plan;
  plan->why_cpu = on_gpu.failure().text;
  if (log_wanted()) log(text("auto: the CPU computes {}, since: {}", problem.line(), plan->why_cpu));
  return plan;
}

}  // namespace

Result<fh_plan> make_plan(const Problem& problem, const Target& target) {
  switch (target.kind) {
    case Target::Kind::cpu: return plan_on_cpu(problem);
    case Target::Kind::named: return plan_for(problem, target.device, target.hints);
    case Target::Kind::automatic: return plan_anywhere(problem, target);
    case Target::Kind::hopper: return plan_on_gpu(problem, target.ordinal, target.hints);
  }
  return Failure{FH_INTERNAL, "a target of no kind"};
}

namespace {

// "hopper:1" is GPU 1.
Result<int> number_of_gpu(const std::string& where) {
  const std::string begin = "hopper:";
  int ordinal = -1;
  if (number_after(where, begin, ordinal) && ordinal >= 0) return ordinal;
  return Failure{FH_INVALID_PROBLEM,
                 text("target is \"{}\"; after \"hopper:\" comes the number of a GPU. Use \"hopper:0\" "
                      "for the first one.",
                      shown(where))};
}

// What frameworks call it: "gpu", "cuda" and "cuda:1" are "hopper" and "hopper:1" here, "CPU" and "host" are "cpu". ""
// where it is none of these.
std::string other_word(std::string where) {
  std::ranges::transform(where, where.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string_view word : {"nvidia", "sm_90", "sm_90a", "sm90", "sm90a"})
    if (where == word) return "hopper";
  for (const std::string_view word : {"host", "x86", "x86_64", "intel", "amd"})
    if (where == word) return "cpu";
  for (const std::string_view word : {"cuda", "gpu", "hopper"}) {
    if (!where.starts_with(word)) continue;
    int ordinal = 0;
    const bool numbered = number_after(where, text("{}:", word), ordinal);
    if (numbered || where == word) return numbered ? text("hopper:{}", ordinal) : "hopper";
  }
  return where == "cpu" || where == "auto" ? where : "";
}

constexpr const char* the_cpu = "the CPU is \"cpu\" alone; max_sms bounds its threads.";

// What the only word that names a place says wrong, and the word that was meant, where that can be told.
std::string wrong_place(const std::string& where, const Failure& failure) {
  if (const std::string ours = other_word(where); !ours.empty()) return text("here that is \"{}\".", ours);
  constexpr std::array<std::string_view, 5> known = {"auto", "cpu", "hopper", "h100", "h200"};
  if (where.empty()) return "it is empty.";
  if (where.starts_with("cpu") && !std::isalpha(static_cast<unsigned char>(where.substr(0, 4).back())))
    return the_cpu;
  // Nobody who writes one of these has mistyped h100 or h200.
  constexpr std::array<std::string_view, 3> hoppers = {"gh200", "h20", "h800"};
  constexpr std::array<std::string_view, 18> others = {"a100",    "a800", "b100",  "b200", "b300", "gb200",
                                                       "gb300",   "l40",  "l40s",  "v100", "rocm", "rtx4090",
                                                       "rtx5090", "mps",  "metal", "tpu",  "xpu",  "mi300x"};
  if (std::ranges::find(hoppers, where) != hoppers.end()) return failure.text;
  if (std::ranges::find(others, where) != others.end())
    return text("the kernels are for no other, so beside {} the problem runs on \"cpu\".", where);
  if (where.find(',') != where.npos) return "its words have blanks between, and no commas.";
  const size_t colon = std::min(where.find(':'), where.size());
  const std::string_view near = near_word(std::string_view(where).substr(0, colon), known);
  if (near.empty() || (colon < where.size() && near != "hopper")) return failure.text;
  const std::string meant = text("did you mean \"{}{}\"?", near, shown(where.substr(colon)));
  return near.starts_with("h") && near != "hopper" ? text("{} {}", meant, failure.text) : meant;  // or another GPU
}

// Of a word after the first that is neither a hint nor a GPU's number: what was meant, "" where that cannot be told.
std::string wrong_word(const std::string& word) {
  constexpr std::pair<std::string_view, std::string_view> known[] = {{"tiles", "tiles=128x64s3"},
                                                                     {"section", "section=16MiB"},
                                                                     {"tail", "tail=30%"},
                                                                     {"deferred", "deferred=8"},
                                                                     {"packgqa", "packgqa=1"},
                                                                     {"parts", "parts=4"},
                                                                     {"splits", "parts=4"},
                                                                     {"num_splits", "parts=4"},
                                                                     {"pack_gqa", "packgqa=1"},
                                                                     {"l2", "l2=40MiB"},
                                                                     {"clock", "clock=1500MHz"},
                                                                     {"memory", "memory=2000GB/s"},
                                                                     {"sms", "64sm"},
                                                                     {"dequantised", "dequantised=1"}};
  std::array<std::string_view, std::size(known)> names;
  std::ranges::transform(known, names.begin(), [](const auto& one) { return one.first; });
  for (const char* const unit : {"sm", "MiB", "MHz", "GB/s"})
    if (word.ends_with(unit)) return {};  // a number, of which the value is wrong
  std::string name = word.substr(0, word.find('='));
  if (!name.empty() && std::isdigit(static_cast<unsigned char>(name[0]))) name = "sms";  // "64sms"
  const auto exact = std::ranges::find(names, name);
  const std::string_view near = exact != names.end() ? *exact : near_word(name, names);
  const auto found = std::ranges::find(names, near);
  if (found == names.end()) return {};
  return text("\"{}\" is neither a hint nor a GPU's number. Did you mean one such as {}?", shown(word),
              known[found - names.begin()].second);
}

// What is wrong with several words, of which hints are left out: a GPU's name and its numbers.
std::string wrong_words(const std::vector<std::string>& words, const Failure& failure) {
  if (words[0] == "cpu") return the_cpu;
  for (size_t i = 1; i < words.size(); ++i) {
    if (Device::parse({"h100", words[i]})) continue;  // a number
    const std::string meant = wrong_word(words[i]);
    return meant.empty() ? failure.text : meant;
  }
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (words[0] == "auto" || words[0].starts_with("hopper"))
    return text(
        "\"{}\" is the GPU that is here, with the numbers that it has. Leave out {}, or name h100 or h200 to "
        "plan for it.",
        shown(words[0]), shown(joined(rest, " ")));
  return known_device(words[0]).sms > 0
             ? failure.text
             : text(
                   "beside its name \"{}\" needs four numbers, as in \"mine 64sm l2=40MiB clock=1500MHz "
                   "memory=2000GB/s\".",
                   shown(words[0]));
}

}  // namespace

Result<Target> read_target(const char* target) {
  using Kind = Target::Kind;
  const std::string name = target ? target : "auto", quoted = shown(name, shown_of_line);
  Target read;
  std::vector<std::string> words, hints;  // the others, and the names of the hints
  for (std::string& word : split(name, ' ')) {
    if (read.hints.read(word)) {
      hints.push_back(word.substr(0, word.find('=')));
      if (std::ranges::count(hints, hints.back()) == 1) continue;
      return Failure{FH_INVALID_PROBLEM,
                     text("target is \"{}\"; {}= is there twice. Leave one of them.", quoted, hints.back())};
    }
    if (const std::string why = Hints::why_wrong(word); !why.empty())
      return Failure{FH_INVALID_PROBLEM, text("target is \"{}\": {}", quoted, why)};
    words.push_back(std::move(word));
  }
  const bool hinted = !read.hints.line().empty();
  const std::string where = words.empty() ? "" : words[0];

  if (where == "auto" && words.size() == 1) return read;
  if (where == "cpu" && words.size() == 1) {
    read.kind = Kind::cpu;
    if (!hinted) return read;
    return Failure{FH_INVALID_PROBLEM,
                   text("target is \"{}\"; hints are for the kernels of a GPU. Leave them out.", quoted)};
  }
  if (words.size() == 1 && (where == "hopper" || where.starts_with("hopper:"))) {
    read.kind = Kind::hopper;
    if (where == "hopper") return read;
    const auto ordinal = number_of_gpu(where);
    if (!ordinal) return ordinal.failure();
    read.ordinal = *ordinal;
    return read;
  }
  auto device = Device::parse(words);
  if (!device) {
    const std::string why =
        words.size() < 2 ? wrong_place(where, device.failure()) : wrong_words(words, device.failure());
    const char* const hints =
        name.find('=') == name.npos
            ? ""
            : "; on a GPU with hints such as tiles=128x64s3, section=16MiB, tail=30%, deferred=8, "
              "packgqa=1, parts=4, dequantised=1";
    return Failure{FH_INVALID_PROBLEM,
                   text("target is \"{}\", which names neither a backend nor a Hopper GPU: {} It must be \"auto\", "
                        "\"cpu\", \"hopper\", \"hopper:1\" or a GPU to plan for, \"h200\"{}.",
                        quoted, why, hints)};
  }
  read.kind = Kind::named;
  read.device = std::move(*device);
  return read;
}

}  // namespace froghopper
