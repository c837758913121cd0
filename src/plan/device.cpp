// SPDX-License-Identifier: Apache-2.0
// plan: devices and hints <-> words of text.
#include "src/plan/device.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <utility>

#include "src/base/printable.hpp"
#include "src/base/text.hpp"
#include "src/plan/kernel.hpp"

namespace froghopper {
namespace {

struct Known {
  const char* name;
  int sms, l2_mib, clock_mhz, memory_gbps;
};
// SMs, L2 and clock as the driver states them for the SXM cards; bandwidth by NVIDIA's data sheets.
constexpr std::array known = {Known{"h100", 132, 50, 1980, 3350}, Known{"h200", 132, 60, 1980, 4800}};

Device of(const Known& k) {
  return {.name = k.name,
          .sms = k.sms,
          .l2_bytes = int64_t{k.l2_mib} << 20,
          .clock_mhz = k.clock_mhz,
          .memory_gbps = k.memory_gbps};
}

// "l2=60MiB" with "l2=" and "MiB" is 60.
bool number_between(const std::string& word, const std::string& begin, const std::string& end, int& value) {
  return word.size() > end.size() && word.ends_with(end) &&
         number_after(word.substr(0, word.size() - end.size()), begin, value);
}

// Far more than any GPU has. Planning goes through the SMs one by one, and products of these numbers fit 64 bits.
constexpr int sms_most = 4096, l2_mib_most = 1 << 20, clock_mhz_most = 100'000, memory_gbps_most = 1'000'000;

// A word that is one of a GPU's numbers, but not one that a GPU can have.
std::string beyond_any_gpu(const Device& device) {
  const struct {
    int64_t value;
    int most;
    const char* what;
  } all[] = {{device.sms, sms_most, "SMs"},
             {device.l2_bytes >> 20, l2_mib_most, "MiB of L2"},
             {device.clock_mhz, clock_mhz_most, "MHz"},
             {device.memory_gbps, memory_gbps_most, "GB/s"}};
  for (const auto& [value, most, what] : all)
    if (value > most) return text("{} {} are more than any GPU has; plans are made for up to {}.", value, what, most);
  return {};
}

bool read_word(const std::string& word, Device& device) {
  int mib = 0;
  if (number_between(word, "l2=", "MiB", mib)) return device.l2_bytes = int64_t{mib} << 20, mib > 0;
  if (number_between(word, "", "sm", device.sms)) return device.sms > 0;
  if (number_between(word, "clock=", "MHz", device.clock_mhz)) return device.clock_mhz > 0;
  return number_between(word, "memory=", "GB/s", device.memory_gbps) && device.memory_gbps > 0;
}

// Tiles beyond these are refused by every kernel's why_invalid; here no product of them may overflow.
constexpr int tile_most = 1 << 10;

constexpr int parts_most = 1 << 10;

std::optional<Tiles> parse_tiles(const std::string& text) {
  Tiles tiles{};
  int end = 0;
  const int got = std::sscanf(text.c_str(), "%5dx%5ds%5d%n", &tiles.q, &tiles.kv, &tiles.stages, &end);
  if (got != 3 || text[end] != '\0') return std::nullopt;
  for (const int size : {tiles.q, tiles.kv, tiles.stages})
    if (size < 1 || size > tile_most) return std::nullopt;
  return tiles;
}

}  // namespace

Device known_device(const std::string& name) {
  const auto found = std::ranges::find(known, name, &Known::name);
  return found == known.end() ? Device{.name = shown(name)} : of(*found);
}

Result<Device> Device::parse(const std::vector<std::string>& words) {
  const auto unclear = [&](std::string why) {
    return Failure{FH_INVALID_PROBLEM,
                   text("{} Name h100 or h200, or a GPU of your own with its numbers: \"mine 64sm "
                        "l2=40MiB clock=1500MHz memory=2000GB/s\".",
                        std::move(why))};
  };
  if (words.empty()) return unclear("no device is named.");
  Device device = known_device(words[0]);
  for (size_t i = 1; i < words.size(); ++i)
    if (!read_word(words[i], device))
      return unclear(text("\"{}\" must be one of a GPU's numbers, each 1 or more.", shown(words[i])));
  if (device.sms == 0 || device.l2_bytes == 0 || device.clock_mhz == 0 || device.memory_gbps == 0)
    return unclear(text("\"{}\" is no GPU whose numbers are known.", shown(words[0])));
  if (std::string why = beyond_any_gpu(device); !why.empty()) return unclear(std::move(why));
  return device;
}

std::string Device::line() const {
  return text("{} {}sm l2={}MiB clock={}MHz memory={}GB/s", name, sms, l2_bytes >> 20, clock_mhz, memory_gbps);
}

bool Hints::read(const std::string& word) {
  const auto within = [](int value, int most) { return value >= 0 && value <= most; };
  int value = 0;
  if (word.starts_with("tiles=")) {
    tiles = parse_tiles(word.substr(6));
    return tiles.has_value();
  }
  if (number_between(word, "section=", "MiB", value)) return section_mib = value, within(value, 1 << 20) && value > 0;
  if (number_between(word, "tail=", "%", value)) return tail_percent = value, within(value, 99);
  // late= and packed= are what these two were called before 0.4.
  if (number_after(word, "deferred=", value) || number_after(word, "late=", value))
    return deferred_tiles = value, value >= 0;
  if (number_after(word, "packgqa=", value) || number_after(word, "packed=", value))
    return pack_gqa = value, within(value, 1);
  if (number_after(word, "dequantised=", value)) return dequantised = value, within(value, 1);
  if (number_after(word, "parts=", value)) return parts = value, within(value, parts_most) && value > 0;
  return false;
}

std::string Hints::why_wrong(const std::string& word) {
  constexpr std::pair<std::string_view, std::string_view> rules[] = {
      {"tiles=", "query rows, keys and stages, such as tiles=128x64s3"},
      {"section=", "whole MiB from 1 on, such as section=16MiB"},
      {"tail=", "a percentage from 0 to 99, such as tail=30%"},
      {"deferred=", "a number from 0 on, such as deferred=8"},
      {"late=", "a number from 0 on, such as deferred=8"},
      {"packgqa=", "packgqa=0 or packgqa=1"},
      {"packed=", "packgqa=0 or packgqa=1"},
      {"dequantised=", "dequantised=0 or dequantised=1"},
      {"parts=", "a number from 1 to 1024, such as parts=4"}};
  for (const auto& [name, rule] : rules)
    if (word.starts_with(name)) return text("the hint {} must be {}.", shown(word), rule);
  return {};
}

std::string Hints::line() const {
  std::string line;
  if (tiles) line += text(" tiles={}x{}s{}", tiles->q, tiles->kv, tiles->stages);
  if (section_mib) line += text(" section={}MiB", *section_mib);
  if (tail_percent) line += text(" tail={}%", *tail_percent);
  if (deferred_tiles) line += text(" deferred={}", *deferred_tiles);
  if (pack_gqa) line += text(" packgqa={}", *pack_gqa);
  if (parts) line += text(" parts={}", *parts);
  if (dequantised) line += text(" dequantised={}", *dequantised);
  return line;
}

}  // namespace froghopper
