// SPDX-License-Identifier: Apache-2.0
// check: inputs made for a case, computed three times (fp64 oracle, plain loops of the same precision, a backend),
// compared. Used by the command line and the tests; not part of the library.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "src/problem/tensors.hpp"

namespace froghopper::check {

// A line of a case file: "PROBLEM LINE : key=value ... # reason". Blanks may be repeated to line columns up.
//   lens_q=0,7,1023 lens_kv=...   varlen: rows of each sequence (else a fixed pseudo-random cut of total)
//   used_q=... used_kv=...        seqused; with one of them alone, all rows of the other side count
//   data=NAME                     how inputs are drawn: normal (default), times4, huge, ... see data.cpp
//   layout=NAME                   bshd (default), bhsd, padded, ...: strides of the tensors, see layout.cpp
//   rows=sample                   compare some hundred rows with the oracle, not all: for problems too large for it
//   only=cpu | only=gpu           the backend that the case is for
struct Case {
  Problem problem;
  std::vector<int64_t> lens_q, lens_kv, used_q, used_kv;
  std::string data = "normal", layout = "bshd", only, reason;
  bool sample_rows = false;

  std::string line() const;  // parse_case(c.line()) is c without its reason
};
Result<Case> parse_case(const std::string& line);               // a failure names the byte of the line
Result<std::vector<Case>> read_cases(const std::string& path);  // a failure names file, line and byte

// Which tensor a block of memory is for.
enum Part {
  part_q,
  part_k,
  part_v,
  part_o,
  part_lse,
  part_cu_q,
  part_cu_kv,
  part_used_q,
  part_used_kv,
  part_sink,
  parts
};

// Host memory for a case. Every tensor has a block of its own with guard zones around it. Guard zones, gaps between
// rows and everything no key or query occupies hold bytes 0xff, which are NaN in all three types; o and lse hold
// nothing else.
struct Inputs {
  std::array<std::vector<unsigned char>, parts> blocks;  // empty where the problem has no such tensor
  fh_tensors tensors = fh_tensors_init();                // into the blocks

  // The same tensors in copies of the blocks that begin at these addresses.
  fh_tensors at(const std::array<void*, parts>& begins) const;
};
std::unique_ptr<Inputs> make_inputs(const Case&, unsigned seed);

// What a backend's result is worth. "allowed" is the bound of the measure before it, see compare.cpp for its
// derivation.
struct Outcome {
  std::string backend, plan;
  double error = 0, plain_error = 0, allowed = 0;  // largest |o - o64|; plain: of plain loops in the same precision
  double row_error = 0, row_allowed = 0;           // largest ||o - o64|| / ||o64|| of one row
  double relative = 0;                             // ||o - o64|| / ||o64|| over all rows
  double lse_error = 0, lse_allowed = 0;           // largest |lse - lse64| / (1 + |lse64|)
  double mean_gain = 0,
         gain_allowed = 0;  // sum of (o - o64) o64 / sum of o64^2: signed, so it shows a coherent error
  bool passed = false;
  std::string why;  // of a failure: what, and in which row
};
enum class Backend { cpu, hopper };

// A Failure: it was refused or could not run. An Outcome that has not passed: it ran and is wrong.
Result<Outcome> check_forward(const Case&, Backend, unsigned seed = 1);

// Whether there is a GPU that Backend::hopper can run on; the Failure says what is missing.
Result<void> hopper_is_here();

}  // namespace froghopper::check
