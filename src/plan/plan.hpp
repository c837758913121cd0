// SPDX-License-Identifier: Apache-2.0
// plan: the decision, as a value. A pure function of (problem, device); calls no driver and owns nothing.
#pragma once
#include <cstddef>
#include <string>

#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "src/plan/tiles.hpp"
#include "src/problem/problem.hpp"

namespace froghopper {

// What the planner may know about a GPU; constructible without one.
struct Device {
  std::string name = "h200";  // one word
  int sms = 132;
  int64_t l2_bytes = 60 << 20;
  int ordinal = 0;             // which GPU; not part of the line
  std::optional<Tiles> tiles;  // instead of the tuned ones, to measure others; never changes results

  static Result<Device> parse(const std::string& line);  // "h200 132sm [l2=60MiB] [tiles=128x176s2]"
  std::string line() const;
};

// The order in which persistent CTAs take work: fwd/schedule.cuh.
struct Order {
  int works, pairs, q_tiles, section, tail;
  bool operator==(const Order&) const = default;
};

struct Plan {
  Problem problem;
  FwdVariant variant{};  // which kernel; the key of the module cache
  Order order{};
  int grid = 0;  // CTAs; 0: nothing to launch
  int smem_bytes = 0;
  size_t workspace_bytes = 0;
  std::string line() const;  // "PROBLEM -> VARIANT grid 132 section 8 tail 16 smem 160KiB ws 16"
};

inline constexpr size_t workspace_bytes_max = 16;  // of every plan: the work counter

Result<Plan> plan_forward(const Problem&, const Device&);  // FH_UNSUPPORTED with the reason and a way out

// "fwd.bf16.d128.q128.kv128.s2.causal": the name of a variant in presets, logs, cubins and caches.
// "fwd.bf16.d192v128.q128.kv112.s2.window.ragged.softcap" has all its parts.
std::string variant_name(const FwdVariant&);
Result<FwdVariant> parse_variant(const std::string& name);

}  // namespace froghopper
