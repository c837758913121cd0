// SPDX-License-Identifier: Apache-2.0
// Claims about memory that a call may not write, on the CPU, through the C interface: no byte changes before, after and
// between the rows of a tensor; with accumulate none of rows that see no key or are of no sequence, and in a quantise
// problem none of rows of no sequence. Elsewhere such rows are o = 0, lse = -inf and gradients of 0.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "froghopper/froghopper.h"
#include "src/problem/tensors.hpp"

namespace froghopper {
namespace {

using Lengths = std::vector<int32_t>;

struct Case {
  const char* line;
  Lengths lens_q, lens_kv, used_q, used_kv;
};

// Between sequences that have rows and keys there are some without either, and at the end rows of none.
const Case cases[] = {
    {"b4 hq2 hkv1 sq3 skv4 d16 varlen tq8 tkv12", {2, 0, 3, 1}, {3, 2, 0, 4}, {}, {}},
    {"b4 hq2 hkv1 sq3 skv4 d16 varlen tq8 tkv12 seqused", {2, 0, 3, 1}, {3, 2, 0, 4}, {2, 0, 1, 0}, {0, 2, 0, 4}},
    {"b2 hq2 hkv2 sq3 skv4 d16 varlen tq7 tkv9", {0, 0}, {0, 4}, {}, {}},
    {"b3 hq2 hkv1 sq3 skv4 d16 seqused", {}, {}, {3, 0, 2}, {0, 4, 2}},
    {"b2 hq2 hkv1 sq3 skv4 d16 seqused", {}, {}, {}, {0, 0}},
};

constexpr size_t guard = 64;  // bytes on both sides of a tensor

// Every tensor of the problem with gaps between heads, rows and sequences where it may have such.
class Memory {
 public:
  Memory(const std::string& line, const Case& c) : p(*Problem::parse(line)) {
    for (const Tensor& tensor : tensors()) {
      const Use use = tensor.use(p);
      if (use == Use::absent) continue;
      const Shape s = tensor.shape(p);
      const bool gaps = tensor.field.strided();
      fh_tensor user = {};
      user.stride_head = s.dim + 3 * gaps;
      user.stride_seq = s.heads * user.stride_head + 5 * gaps;
      user.stride_batch = s.seq * user.stride_seq + 7 * gaps;
      std::vector<unsigned char>& held = all_[tensor.view];
      held.assign(2 * guard + static_cast<size_t>(s.batch * user.stride_batch * size_of(s.element)), 0xff);
      user.data = held.data() + guard;
      if (s.element == Element::f32 && !is_written(use)) {
        float* const numbers = static_cast<float*>(user.data);
        for (int64_t i = 0; i < s.batch * user.stride_batch; ++i) numbers[i] = static_cast<float>(i % 7) - 3;
      }
      tensor.field.set(this->user, user);
    }
    if (p.varlen) put_ends(&Views::cu_seqlens_q, c.lens_q), put_ends(&Views::cu_seqlens_kv, c.lens_kv);
    put(&Views::seqused_q, c.used_q), put(&Views::seqused_kv, c.used_kv);
    before_ = all_;
  }
  Memory(const Memory&) = delete;

  void run() {
    const fh_problem problem = p.user_struct();
    ASSERT_EQ(fh_attention(&problem, "cpu", &user, nullptr, 0, nullptr), FH_OK) << fh_last_error();
  }

  // All bytes are as they were but for those of the rows that `may` names.
  template <class May>
  void expect_untouched(const Views& views, May may) const {
    for (const Tensor& tensor : tensors()) {
      if (!all_.contains(tensor.view)) continue;
      std::vector<unsigned char> now = all_.at(tensor.view);
      const std::vector<unsigned char>& then = before_.at(tensor.view);
      const View& view = views.*tensor.view;
      const size_t bytes = static_cast<size_t>(view.dim * size_of(view.element));
      for (int64_t b = 0; b < view.batch; ++b)
        for (int64_t row = 0; row < view.seq; ++row)
          for (int64_t head = 0; view.data && head < view.heads; ++head) {
            if (!is_written(tensor.use(p)) || !may(tensor.view, b, row)) continue;
            const size_t at = guard + static_cast<size_t>(view.at(b, row, head) * size_of(view.element));
            std::memcpy(now.data() + at, then.data() + at, bytes);
          }
      EXPECT_EQ(now, then) << tensor.name << " of " << p.line();
    }
  }

  Problem p;
  fh_tensors user = fh_tensors_init();

 private:
  void put(View Views::*member, const Lengths& lengths) {
    if (lengths.empty()) return tensors()[index_of(member)].field.set(user, {});
    std::memcpy(all_.at(member).data() + guard, lengths.data(), lengths.size() * sizeof(int32_t));
  }
  void put_ends(View Views::*member, const Lengths& lengths) {
    Lengths ends{0};
    for (const int32_t length : lengths) ends.push_back(ends.back() + length);
    put(member, ends);
  }

  std::map<View Views::*, std::vector<unsigned char>, bool (*)(View Views::*, View Views::*)> all_{
      [](View Views::*a, View Views::*b) { return index_of(a) < index_of(b); }},
      before_ = all_;
};

// Of each row of the tensors of q, and of those of k: whether a sequence has it, and whether it counts there and sees
// or is seen by anything.
struct RowKinds {
  std::map<std::array<int64_t, 2>, bool> q, kv;  // batch, row; those of a sequence alone
  RowKinds(const Problem& p, const Views& views) {
    for (int64_t s = 0; s < p.batch; ++s) {
      const Rows rows = rows_q(p, views, s), keys = rows_kv(p, views, s);
      for (int64_t i = 0; i < rows.extent; ++i) q[{rows.batch, rows.first + i}] = i < rows.used && keys.used > 0;
      for (int64_t i = 0; i < keys.extent; ++i) kv[{keys.batch, keys.first + i}] = i < keys.used && rows.used > 0;
    }
  }
};

bool of_keys(View Views::*member) {
  return member == &Views::k || member == &Views::v || member == &Views::grad_k || member == &Views::grad_v ||
         member == &Views::quantised_k || member == &Views::quantised_v;
}
bool of_rows(View Views::*member) {
  return of_keys(member) || member == &Views::o || member == &Views::lse || member == &Views::grad_q ||
         member == &Views::quantised_q;
}

void expect_rows(const Problem& p, const Views& views, const RowKinds& kinds, View Views::*member, float value) {
  const View& view = views.*member;
  if (!view.data || !is_written(tensors()[index_of(member)].use(p))) return;
  const auto& known = of_keys(member) ? kinds.kv : kinds.q;
  for (int64_t b = 0; b < view.batch; ++b)
    for (int64_t row = 0; row < view.seq; ++row) {
      const auto found = known.find({b, row});
      if (found != known.end() && found->second) continue;
      for (int64_t head = 0; head < view.heads; ++head)
        for (int64_t i = 0; i < view.dim; ++i)
          EXPECT_EQ(view.as<float>()[view.at(b, row, head) + i], value)
              << tensors()[index_of(member)].name << ' ' << row << " of " << p.line();
    }
}

void expect_all(const std::string& begin, const std::string& options) {
  for (const Case& c : cases) {
    Memory m(begin + c.line + options, c);
    m.run();
    const Result<Views> views = bind(m.p, m.user);
    ASSERT_TRUE(views) << views.failure().text;
    const RowKinds kinds(m.p, *views);
    m.expect_untouched(*views, [&](View Views::*member, int64_t batch, int64_t row) {
      if (!of_rows(member)) return true;
      const auto& known = of_keys(member) ? kinds.kv : kinds.q;
      const auto found = known.find({batch, row});
      if (m.p.quantises()) return found != known.end();
      return !m.p.accumulate || (found != known.end() && found->second);
    });
    if (m.p.accumulate || m.p.quantises()) continue;
    expect_rows(m.p, *views, kinds, &Views::o, 0);
    expect_rows(m.p, *views, kinds, &Views::lse, -std::numeric_limits<float>::infinity());
    for (View Views::*gradient : {&Views::grad_q, &Views::grad_k, &Views::grad_v})
      expect_rows(m.p, *views, kinds, gradient, 0);
  }
}

TEST(Untouched, Forward) {
  expect_all("fwd f32 ", "");
  expect_all("fwd f32 ", " invariant");
  expect_all("fwd f32 ", " causal");
}
TEST(Untouched, ForwardThatMerges) { expect_all("fwd f32 ", " acc"); }
TEST(Untouched, Backward) { expect_all("bwd f32 ", ""); }
TEST(Untouched, BackwardThatAdds) { expect_all("bwd f32 ", " acc"); }
TEST(Untouched, Quantise) {
  expect_all("quantise f32 kv=e4m3 ", "");
  expect_all("quantise f32 kv=e4m3 ", " scales128 smooth");
}

}  // namespace
}  // namespace froghopper
