// SPDX-License-Identifier: Apache-2.0
// plan: the decision, as a value. A pure function of problem, device and hints; calls no driver and owns nothing.
#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "contract/append.h"
#include "contract/average.h"
#include "contract/bwd_variant.h"
#include "contract/combine_variant.h"
#include "contract/dequantise.h"
#include "contract/fill.h"
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/order.h"
#include "contract/quantise_params.h"
#include "contract/quantise_variant.h"
#include "contract/split.h"
#include "src/plan/device.hpp"
#include "src/plan/kernel.hpp"
#include "src/problem/problem.hpp"

namespace froghopper {

// A piece of the caller's workspace. Each begins at a multiple of slice_alignment.
struct Slice {
  size_t offset = 0, bytes = 0;
};
inline constexpr size_t slice_alignment = 256;  // of the workspace too: what cudaMalloc gives, and enough for TMA

struct Workspace {
  Slice tickets;  // the counters of Tickets, device/attn/tickets.cuh; one for each forward launch
  Slice sums;     // 8-bit types: sums of o of long sequences, device/fwd/promotion.cuh
  Slice dequantised_k, dequantised_v;  // 8-bit k and v in q's type, by DequantiseStep
  Slice block_scales;                  // with them: BlockScales
  // Split forward only: contract/split.h.
  Slice part_o, part_rows, shared_q_tiles;
  // Backward only, by q tiles of all sequences and heads (QTiles, contract/bwd_params.h).
  Slice large_rows;     // whether some row's lse is large
  Slice rows;           // lse and delta
  Slice grad_q;         // its sums in fp32
  Slice grad_sink;      // its shares
  Slice dq_semaphores;  // which kv tile adds to grad_q next
  Slice gated_grad_o;   // with a gate: grad_o by its sigmoid, dense
  Slice largest;        // quantise: the largest value of each tile, where all rows of a sequence share a scale
  // Quantise with smooth only: AverageParams.
  Slice column_sums, means;
  size_t bytes = 0;  // up to the end of the last slice

  Slice take(size_t bytes);  // the next slice
};
inline constexpr std::array workspace_slices = {std::pair{"tickets", &Workspace::tickets},
                                                std::pair{"sums", &Workspace::sums},
                                                std::pair{"dequantised_k", &Workspace::dequantised_k},
                                                std::pair{"dequantised_v", &Workspace::dequantised_v},
                                                std::pair{"block_scales", &Workspace::block_scales},
                                                std::pair{"part_o", &Workspace::part_o},
                                                std::pair{"part_rows", &Workspace::part_rows},
                                                std::pair{"shared_q_tiles", &Workspace::shared_q_tiles},
                                                std::pair{"large_rows", &Workspace::large_rows},
                                                std::pair{"rows", &Workspace::rows},
                                                std::pair{"grad_q", &Workspace::grad_q},
                                                std::pair{"grad_sink", &Workspace::grad_sink},
                                                std::pair{"dq_semaphores", &Workspace::dq_semaphores},
                                                std::pair{"gated_grad_o", &Workspace::gated_grad_o},
                                                std::pair{"largest", &Workspace::largest},
                                                std::pair{"column_sums", &Workspace::column_sums},
                                                std::pair{"means", &Workspace::means}};

// What one launch is for. Each kind has parameters of its own: src/runtime/params.
struct Parts {
  int tiles = 0;  // kv tiles of a part; no_bound: of any number
  int most = 1;   // parts of the longest sequence
};
struct FillStep {  // max_logit begins at -inf
  FillVariant variant;
};
struct DequantiseStep {  // the forward kernel reads what it writes
  DequantiseVariant variant;
};
struct EvenSplit {            // contract/split.h
  int ctas = 0, classes = 1;  // of the forward kernel; of heads
};
struct ForwardStep {
  FwdVariant variant;
  Order order;
  PackGqaParams pack_gqa;  // PackGQA variants only
  Parts parts;
  bool has_tickets = true;  // false: no CTA has a second item
  RowsRange rows;           // of the sequences that it computes
  bool second = false;      // the launch before it computes the sequences with more rows
  EvenSplit even = {};      // even splits only
};
struct CombineStep {
  CombineVariant variant;
  int tile_q, tile_kv;  // of the forward kernel: query rows of a sequence, keys
  Parts parts;
  PackGqaParams pack_gqa;  // even splits only
  EvenSplit even;          // likewise
};
struct DeltaStep {
  DeltaVariant variant;
  BwdVariant reader;  // of what it writes
};
struct BackwardStep {
  BwdVariant variant;
  Order order;
  int same_traversal = 0, pairs_light_first = 0;  // of BwdParams
};
struct GradQStep {
  GradQVariant variant;
};
struct QuantiseStep {
  QuantiseVariant variant;
  Scaling scaling;
};
struct AverageStep {
  AverageVariant variant;
  Averaging what;
};
struct AppendStep {
  AppendVariant variant;
  int lane_groups;  // that share the heads of a row
  int iterations;   // of each of them
};
using Step = std::variant<ForwardStep, CombineStep, DeltaStep, BackwardStep, GradQStep, QuantiseStep, AverageStep,
                          FillStep, DequantiseStep, AppendStep>;

struct Launch {
  KernelSpec kernel;
  int grid = 0;  // CTAs, at least 1
  Step step;
  bool overlaps = false;  // may start before the kernel before it in the stream has ended, and waits for it itself
  bool one_cta_an_sm = false;  // two CTAs find room on an SM, but there are SMs for all: each gets one of its own
  std::string line() const;    // "KERNEL grid 132 section 8 tail 16 last 12 eager smem 160KiB"
};

// Launches one after the other in one stream; none: there is nothing to compute.
struct Plan {
  Problem problem;
  std::vector<Launch> launches;
  Workspace workspace;
  std::string line() const;  // "PROBLEM -> LAUNCH; LAUNCH ws 8"
};

Result<Plan> make_gpu_plan(const Problem&, const Device&, const Hints& = {});  // FH_UNSUPPORTED with the reason

}  // namespace froghopper
