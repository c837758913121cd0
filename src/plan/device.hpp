// SPDX-License-Identifier: Apache-2.0
// plan: what the planner may know about a GPU, and what a user may tell it to do otherwise. Both are values that can be
// made without a GPU.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "contract/types.h"
#include "src/base/result.hpp"

namespace froghopper {

struct Device {
  std::string name;  // one word
  int sms = 0;
  int64_t l2_bytes = 0;
  int clock_mhz = 0;    // the highest that the SMs reach
  int memory_gbps = 0;  // bandwidth in 10^9 bytes a second
  int ordinal = 0;      // which GPU of this machine; not part of the line

  // "h100", "h200 100sm", "mine 64sm l2=40MiB clock=1500MHz memory=2000GB/s": a name that is known brings its numbers
  // along, the words after it replace them.
  static Result<Device> parse(const std::vector<std::string>& words);
  std::string line() const;  // all of them
};
Device known_device(const std::string& name);  // "h100" or "h200", the cards this library was measured on

// What the planner would choose otherwise. Hints change speed, never results; a plan that was made with them runs like
// any other, so that choices are measured without editing a table.
struct Hints {
  std::optional<Tiles> tiles;         // tiles=128x176s2
  std::optional<int> section_mib;     // section=16MiB: K and V of a section
  std::optional<int> tail_percent;    // tail=30%: q tiles of a pair that are handed out last
  std::optional<int> deferred_tiles;  // deferred=8: Order::deferred_tiles
  std::optional<int> pack_gqa;        // packgqa=1: query heads share tiles; packgqa=0: they do not
  std::optional<int> parts;           // parts=4: into which the keys of the longest sequence are cut; 1: none
  // Dequantised=1: 8-bit k and v get q's type in a launch of their own; dequantised=0: not
  std::optional<int> dequantised;
  bool read(const std::string& word);                     // false: the word is no hint
  std::string line() const;                               // " tiles=128x176s2 tail=30%"
  static std::string why_wrong(const std::string& word);  // "": the word has the name of no hint
};

}  // namespace froghopper
