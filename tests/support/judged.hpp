// SPDX-License-Identifier: Apache-2.0
// tests: a case whose result can be spoilt before it is judged.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "check/compare.hpp"
#include "check/tensor_core.hpp"
#include "src/base/storage.hpp"
#include "src/oracle/oracle.hpp"
#include "tests/support/case_of.hpp"

namespace froghopper::test {

// A case with the oracle's plain loops as its result, to be spoilt.
class Judged : public testing::Test {
 protected:
  void start(const std::string& line, check::Backend backend = check::Backend::cpu) {
    c_ = case_of(line);
    backend_ = backend;
    in_ = check::make_inputs(c_, 1);
    const auto views = bind(c_.problem, in_->tensors);
    ASSERT_TRUE(views);
    views_ = *views;
    before_.emplace(c_.problem, *in_);
    reference_ = check::make_reference(c_, before_->views(*in_, views_), backend_);
    write(c_.problem, views_);
  }

  // Makes what plain loops compute of this problem and these tensors the result.
  void write(const Problem& p, const Views& inputs) {
    const oracle::Answers answers = check::plain_loops(backend_, p, before_->views(*in_, inputs));
    for (size_t i = 0; i < answers.size(); ++i) {
      if (!is_written(tensors()[i].use(c_.problem))) continue;
      const View& view = views_.*tensors()[i].view;
      auto next = answers[i].begin();
      each_row(view, [&](int64_t at) {
        for (int64_t c = 0; c < view.dim; ++c) store(view.data, at + c, view.element, static_cast<float>(*next++));
      });
    }
  }

  // visit(where the row begins)
  static void each_row(const View& view, const std::function<void(int64_t)>& visit) {
    for (int64_t b = 0; b < view.batch; ++b)
      for (int64_t i = 0; i < view.seq; ++i)
        for (int64_t head = 0; head < view.heads; ++head) visit(view.at(b, i, head));
  }

  float* lse() const { return views_.lse.as<float>(); }
  int64_t place(int64_t b, int64_t row, int64_t head) const { return views_.o.at(b, row, head); }

  std::string verdict() {
    check::Outcome out;
    check::judge(c_.problem, reference_, views_, *in_, *before_, out);
    EXPECT_EQ(out.passed, out.why.empty());
    return out.why;
  }

  check::Case c_;
  check::Backend backend_ = check::Backend::cpu;
  std::unique_ptr<check::Inputs> in_;
  Views views_;
  std::optional<check::Before> before_;
  check::Reference reference_;
};

}  // namespace froghopper::test
