// SPDX-License-Identifier: Apache-2.0
// cp: each enumerator is a case of a switch, so that the compiler names one that is missing.
#include "src/cp/enumerators.hpp"

#include <vector>

#include "src/base/text.hpp"

namespace froghopper::cp {
namespace {

// Null for a number that is none of them.
const char* name_in_c(fh_op op) {
  switch (op) {
    case FH_FORWARD: return "FH_FORWARD";
    case FH_BACKWARD: return "FH_BACKWARD";
    case FH_QUANTISE: return "FH_QUANTISE";
    case FH_APPEND: return "FH_APPEND";
  }
  return nullptr;
}

const char* name_in_c(fh_dtype type) {
  switch (type) {
    case FH_USUAL: return "FH_USUAL";
    case FH_F16: return "FH_F16";
    case FH_BF16: return "FH_BF16";
    case FH_F32: return "FH_F32";
    case FH_E4M3: return "FH_E4M3";
    case FH_E5M2: return "FH_E5M2";
  }
  return nullptr;
}

const char* name_in_c(fh_cp_scheme scheme) {
  switch (scheme) {
    case FH_CP_AUTO: return "FH_CP_AUTO";
    case FH_CP_RING: return "FH_CP_RING";
    case FH_CP_ALL_GATHER: return "FH_CP_ALL_GATHER";
    case FH_CP_ALL_TO_ALL: return "FH_CP_ALL_TO_ALL";
    case FH_CP_ALL_TO_ALL_RING: return "FH_CP_ALL_TO_ALL_RING";
    case FH_CP_ALL_TO_ALL_GATHER: return "FH_CP_ALL_TO_ALL_GATHER";
  }
  return nullptr;
}

const char* name_in_c(fh_cp_layout layout) {
  switch (layout) {
    case FH_CP_LAYOUT_AUTO: return "FH_CP_LAYOUT_AUTO";
    case FH_CP_CONTIGUOUS: return "FH_CP_CONTIGUOUS";
    case FH_CP_ZIGZAG: return "FH_CP_ZIGZAG";
    case FH_CP_BY_DOCUMENT: return "FH_CP_BY_DOCUMENT";
  }
  return nullptr;
}

const char* name_in_c(fh_cp_transfers transfers) {
  switch (transfers) {
    case FH_CP_SEND_RECV: return "FH_CP_SEND_RECV";
    case FH_CP_PEER_COPIES: return "FH_CP_PEER_COPIES";
  }
  return nullptr;
}

template <class Enum>
std::string name_or_number(Enum value) {
  const char* const name = name_in_c(value);
  return name ? name : text("{}", static_cast<int>(value));
}

// Of an enum whose values are 0, 1 and so on.
template <class Enum>
std::string wrong_number(Enum value, const char* field, const char* type) {
  if (name_in_c(value)) return {};
  std::vector<const char*> names;
  while (const char* const name = name_in_c(static_cast<Enum>(names.size()))) names.push_back(name);
  std::string all = names.front();
  for (size_t i = 1; i < names.size(); ++i) all += text("{}{}", i + 1 < names.size() ? ", " : " or ", names[i]);
  return text("{} is {}, which names no {}. Use {}.", field, static_cast<int>(value), type, all);
}

}  // namespace

std::string c_name(fh_op op) { return name_or_number(op); }
std::string c_name(fh_dtype type) { return name_or_number(type); }
std::string c_name(fh_cp_scheme scheme) { return name_or_number(scheme); }
std::string c_name(fh_cp_layout layout) { return name_or_number(layout); }
std::string c_name(fh_cp_transfers how) { return name_or_number(how); }

std::string no_name(fh_cp_scheme scheme) { return wrong_number(scheme, "scheme", "fh_cp_scheme"); }
std::string no_name(fh_cp_layout layout) { return wrong_number(layout, "layout", "fh_cp_layout"); }
std::string no_name(fh_cp_transfers how, const char* field) { return wrong_number(how, field, "fh_cp_transfers"); }

}  // namespace froghopper::cp
