// SPDX-License-Identifier: Apache-2.0
// base: an error is a value. Nothing in src/ throws across a room; the C++ skin in include/ does.
#pragma once
#include <froghopper/froghopper.h>

#include <string>
#include <utility>
#include <variant>

namespace froghopper {

// text: "what you gave; the rule. A way out." without the name of the call, which src/api puts in front.
struct Failure {
  fh_status status;
  std::string text;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::move(value)) {}
  Result(Failure f) : v_(std::move(f)) {}
  explicit operator bool() const { return v_.index() == 0; }
  T& operator*() { return std::get<0>(v_); }
  const T& operator*() const { return std::get<0>(v_); }
  T* operator->() { return &std::get<0>(v_); }
  const T* operator->() const { return &std::get<0>(v_); }
  const Failure& failure() const { return std::get<1>(v_); }

 private:
  std::variant<T, Failure> v_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Failure f) : failed_(true), failure_(std::move(f)) {}
  explicit operator bool() const { return !failed_; }
  const Failure& failure() const { return failure_; }

 private:
  bool failed_ = false;
  Failure failure_{FH_OK, {}};
};

}  // namespace froghopper
