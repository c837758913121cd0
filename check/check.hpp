// SPDX-License-Identifier: Apache-2.0
// check: inputs made for a case, computed three times (fp64 oracle, plain loops of the same precision, a backend),
// compared. Used by the command line and the tests; not part of the library.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "src/base/unwritten.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper::check {

// A line of a case file: "PROBLEM LINE : key=value ... # reason". Blanks may be repeated to line columns up.
//   lens_q=0,7,1023 lens_kv=...   varlen: rows of each sequence (else a fixed pseudo-random cut of total)
//   used_q=... used_kv=...        seqused; with only one of them, all rows of the other side count. append: used_kv
//                                 are rows that the cache has already, without them none
//   data=NAME                     how inputs are drawn: normal (default), times4, huge, ... see data.cpp
//   layout=NAME                   bshd (default), bhsd, padded, ...: strides of the tensors, see layout.cpp
//   rows=sample                   compare some rows with the oracle, not all: for problems too large for it. Of a
//                                 backward problem all rows of some key heads of some sequences
//   grad_lse=yes                  backward: lse has a gradient too
//   only=cpu | only=gpu           the backend that the case is for
struct Case {
  Problem problem;
  std::vector<int64_t> lens_q, lens_kv, used_q, used_kv;
  std::string data = "normal", layout = "bshd", only, reason;
  bool sample_rows = false, grad_lse = false;

  std::string line() const;  // parse_case(c.line()) is c without its reason
};
Result<Case> parse_case(const std::string& line);               // a failure names the byte of the line
Result<std::vector<Case>> read_cases(const std::string& path);  // a failure names file, line and byte
// Reads on behind lines that are no cases, which become failures of their own in `wrong`, and gives the others.
Result<std::vector<Case>> read_cases(const std::string& path, std::vector<Failure>& wrong);

// Host memory for a case. Every tensor has a block of its own with guard zones around it. Guard zones, gaps between
// rows and everything no key or query occupies hold bytes 0xff, which are NaN in all three types; tensors that are
// written hold nothing else. Tensors that are added to hold values in all their rows, except for rows of o whose lse
// says that nothing is there yet.
struct Inputs {
  using Block = Bytes;
  // By index in froghopper::tensors(); empty where the problem has no such tensor.
  std::vector<Block> blocks = std::vector<Block>(froghopper::tensors().size());
  fh_tensors tensors = fh_tensors_init();  // into the blocks
  // Of inputs to measure with: what a block is to hold again and again from its begin on, while it was not written yet.
  // Empty where the block has its values.
  std::vector<Block> pieces = std::vector<Block>(froghopper::tensors().size());

  const Block& block(View Views::*view) const { return blocks[index_of(view)]; }
  Block& block(View Views::*view) { return blocks[index_of(view)]; }

  // The same tensors in copies of the blocks that begin at these addresses.
  fh_tensors at(const std::vector<void*>& begins) const;
};

// Where o and lse of a backward problem come from.
enum class FirstPass {
  exact,    // the oracle, rounded; the library on the CPU where rows=sample says that the oracle would take too long
  missing,  // they hold NaN: whoever runs the problem computes them first
};
std::unique_ptr<Inputs> make_inputs(const Case&, unsigned seed, FirstPass = FirstPass::exact);
// To measure with: as many values, of the same kind, but large tensors repeat a piece of some million. o and lse of a
// backward problem are missing.
std::unique_ptr<Inputs> make_inputs_to_measure(const Case&, unsigned seed);
void repeat_pieces(Inputs&);  // in the blocks, which then have all their values
// The values of tensors that are read or added to, except for o and lse of a backward problem, where all else is 0xff.
void fill_inputs(const Case&, const Views&, unsigned seed);

// Those of the tensors that the problem uses: of a backward problem's, what its forward problem takes.
fh_tensors tensors_of(const Problem&, const fh_tensors&);

// How far one written tensor is from the exact one. "allowed" is the bound of the measure before it, see compare.cpp
// for its derivation.
struct Measures {
  std::string tensor;  // "o"
  double error = 0, plain_error = 0,
         allowed = 0;                      // largest |x - exact|; plain: of plain loops in the same precision.
                                           // lse: divided by 1 + |exact|; it has no other measure
  double row_error = 0, row_allowed = 0;   // largest ||x - exact|| / ||size|| of one row; size: |exact|, and of
                                           // gradients what was added up too
  double relative = 0;                     // ||x - exact|| / ||exact|| over all rows
  double rmse = 0;                         // root of the mean square of x - exact over all elements
  double mean_gain = 0, gain_allowed = 0;  // sum of (x - exact) exact / sum of exact^2: signed, so it shows a
                                           // coherent error
};

// What a backend's result is worth.
struct Outcome {
  std::string backend, plan;
  std::vector<Measures> measures;  // of every tensor that the problem writes
  bool passed = false;
  std::string why;  // of a failure: what, and in which row

  Measures of(const std::string& tensor) const;  // zeros where nothing was compared
};
enum class Backend { cpu, hopper };

// A Failure: it was refused, could not run, or cannot be judged. An Outcome that has not passed: it ran and is wrong.
Result<Outcome> check_case(const Case&, Backend, unsigned seed = 1);

// Whether there is a GPU that Backend::hopper can run on; the Failure says what is missing.
Result<void> hopper_is_here();

}  // namespace froghopper::check
