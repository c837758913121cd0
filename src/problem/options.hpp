// SPDX-License-Identifier: Apache-2.0
// problem: the table of options. What an option is called, where the user's struct and Problem have it, how a line
// spells it, what it may be and which operations have it is one row. The line (line.cpp), the two structs
// (user_struct.cpp), the checks of values (validate.cpp) and docs/options.md go through the table; tests hold the
// Python packages to it. The rows are in option_table.cpp and append_options.hpp.
#pragma once
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "src/problem/problem.hpp"

namespace froghopper {

// A field of the user's struct, and of Problem; null where Problem has the same in others.
template <class User, class Own>
struct Place {
  User fh_problem::*user;
  Own Problem::*own;
};
using OpField = Place<fh_op, fh_op>;
using AlignField = Place<fh_align, fh_align>;
using PhaseField = Place<fh_phase, fh_phase>;
using TypeField = Place<fh_dtype, Dtype>;
using CountField = Place<int64_t, int64_t>;
using SeedField = Place<uint32_t, uint32_t>;
using FactorField = Place<float, float>;
using FlagField = Place<int32_t, bool>;
using OptionField =
    std::variant<OpField, AlignField, PhaseField, TypeField, CountField, SeedField, FactorField, FlagField>;

// Sets of operations.
inline constexpr unsigned of_forward = 1, of_backward = 2, of_quantise = 4, of_append = 8;
inline constexpr unsigned of_attention = of_forward | of_backward, of_all = of_attention | of_quantise | of_append;
constexpr unsigned set_of(fh_op op) {
  switch (op) {
    case FH_FORWARD: return of_forward;
    case FH_BACKWARD: return of_backward;
    case FH_QUANTISE: return of_quantise;
    case FH_APPEND: return of_append;
  }
  return 0;
}
constexpr const char* name_of(fh_op op) {
  switch (op) {
    case FH_FORWARD: return "FH_FORWARD";
    case FH_BACKWARD: return "FH_BACKWARD";
    case FH_QUANTISE: return "FH_QUANTISE";
    case FH_APPEND: return "FH_APPEND";
  }
  return "";
}

// As lines spell it.
constexpr const char* name_of(fh_phase phase) {
  switch (phase) {
    case FH_PHASE_NONE: return "none";
    case FH_PHASE_FIRST: return "first";
    case FH_PHASE_MIDDLE: return "middle";
    case FH_PHASE_LAST: return "last";
    case FH_PHASE_ONLY: return "only";
  }
  return "";
}

// The arguments of the Python functions that set an option, with blanks between them; "": the arrays say it.
struct PythonNames {
  const char *numpy = "", *torch = "", *jax = "";  // of attention
  const char* quantise = "";                       // of froghopper.quantise and froghopper.torch.quantise
};

inline constexpr int64_t no_least = std::numeric_limits<int64_t>::min();

struct Option {
  const char* name;  // in fh_problem, and in froghopper::Problem of froghopper.hpp
  OptionField field;
  unsigned ops = of_all;   // which operations have it
  bool of_8_bits = false;  // only of 8-bit k and v, which have no gradients

  // In a line: the letters before the value, with '=' where one stands between them.
  std::string_view word = "";
  bool required = false;
  bool (*shown)(const Problem&) = nullptr;  // whether a line has the word; null: where the value is not 0

  // What is refused: a value below the least, with what is said after "NAME is VALUE; ". Null: a rule of validate.cpp
  // also names other values.
  int64_t least = no_least;
  const char* below = nullptr;
  // In an operation that does not have it, after "NAME is VALUE and op is OP; ". Null: it says how scores are made of
  // q and k, and nothing about quantising or appending.
  const char* elsewhere = nullptr;
  unsigned not_computed = 0;  // of the operations that do not have it: those where it would make sense

  // For people: what it is where nobody says and what it may be, if kind and least do not tell; the row of
  // docs/support.md that asks for it; one sentence.
  const char* usual = "";
  const char* range = "";
  const char* support = "";
  PythonNames python = {};
  const char* sentence;

  // The letters of its word: "kv" of "kv=".
  std::string_view key() const { return word.substr(0, word.find('=')); }
};

std::span<const Option> options();  // one a field, in the order of the line

// Whether the user asks for something other than what fh_problem_init() has. Types, op and align have rules of their
// own.
bool is_given(const Option&, const fh_problem&);
bool is_shown(const Option&, const Problem&);            // in a line
std::string value_of(const Option&, const fh_problem&);  // as messages have it
std::string form_of(const Option&);                      // "hqN", "chunk=N", "scaleX", "kv=DTYPE", "causal"

// Field by field, as they stand; what depends on other fields is filled in by those who call these.
void copy_options(const fh_problem& from, Problem& to);
void copy_options(const Problem& from, fh_problem& to);

bool is_default_scale(float scale);  // C has one word for "as usual" and for zero; the sign tells them apart

}  // namespace froghopper
