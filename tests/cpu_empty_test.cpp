// SPDX-License-Identifier: Apache-2.0
// tests: the CPU through the C interface where tensors are empty and NULL: no sequences, sequences without rows, and
// rows of padding beside them, with every option that has a tensor of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <list>
#include <string>
#include <vector>

#include "froghopper/froghopper.h"
#include "src/base/text.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// Every tensor of the problem, dense. All lengths are 0; what is read holds ones where it is of floats, else zeros, and
// what is written NaN. Without elements: NULL.
struct Empty {
  explicit Empty(const std::string& line) : p(*Problem::parse(line)) {
    for (const Tensor& tensor : tensors()) {
      const Use use = tensor.use(p);
      if (use == Use::absent) continue;
      const Shape s = tensor.shape(p);
      const int64_t numbers = s.batch * s.seq * s.heads * s.dim;
      if (numbers == 0) continue;
      auto& held = memory.emplace_back(static_cast<size_t>(numbers * size_of(s.element)), 0);
      if (s.element == Element::f32)
        std::fill_n(reinterpret_cast<float*>(held.data()), numbers,
                    is_written(use) ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
      tensor.field.set(user, {held.data(), s.seq * s.heads * s.dim, s.heads * s.dim, s.dim});
    }
  }
  Empty(const Empty&) = delete;

  void expect_all(View Views::*member, float value) const {
    const Tensor& tensor = tensors()[index_of(member)];
    if (tensor.use(p) == Use::absent) return;
    const Shape s = tensor.shape(p);
    const auto* const numbers = static_cast<const float*>(tensor.field.get(user).data);
    for (int64_t i = 0; numbers && i < s.batch * s.seq * s.heads * s.dim; ++i)
      EXPECT_EQ(numbers[i], value) << tensor.name << ' ' << i << " of " << p.line();
  }

  Problem p;
  fh_tensors user = fh_tensors_init();
  std::list<std::vector<char>> memory;
};

void run(const Empty& t) {
  const fh_problem user = t.p.user_struct();
  ASSERT_EQ(fh_attention(&user, "cpu", &t.user, nullptr, 0, nullptr), FH_OK) << t.p.line() << ": " << fh_last_error();
}

std::vector<std::string> shapes() {
  std::vector<std::string> all{"b0 hq2 hkv1 sq3 skv3", "b2 hq2 hkv1 sq0 skv0"};
  for (const int batch : {0, 2})
    for (const int rows : {0, 3})
      for (const int keys : {0, 3})
        for (const int total_q : {0, 4})
          for (const int total_kv : {0, 5})
            for (const char* const used : {"", " seqused"})
              all.push_back(
                  text("b{} hq2 hkv1 sq{} skv{} varlen tq{} tkv{}{}", batch, rows, keys, total_q, total_kv, used));
  return all;
}

// "SHAPE d16 OPTIONS", with the option where a line has it.
std::string line_of(const char* op, const std::string& shape, const std::string& options) {
  const size_t varlen = shape.find(" varlen");
  const std::string before = shape.substr(0, varlen);
  const std::string after = varlen == std::string::npos ? "" : shape.substr(varlen);
  return text("{} {} d16{}{}", op, before, after, options);
}

TEST(CpuEmpty, Forward) {
  for (const std::string& shape : shapes()) {
    for (const char* const options : {"", " alibi", " sink", " causal sink alibi",
                                      " window2,0 topleft alibi invariant", " maxlogit", " chunk=4"}) {
      const Empty t(line_of("fwd f32", shape, options));
      run(t);
      t.expect_all(&Views::o, 0);
      t.expect_all(&Views::lse, -infinity);
      t.expect_all(&Views::max_logit, -infinity);
    }
    for (const char* const options : {"", " scales128", " vcolumns", " smooth scales128", " alibi"})
      for (const char* const types : {"fwd e4m3 o=f32", "fwd f16 kv=e5m2 o=f32"}) {
        const Empty t(line_of(types, shape, options));
        run(t);
        t.expect_all(&Views::o, 0);
      }
    run(Empty(line_of("fwd f32", shape, " alibi acc")));
  }
}

TEST(CpuEmpty, Backward) {
  for (const std::string& shape : shapes()) {
    for (const char* const options : {"", " alibi", " sink", " causal sink alibi"}) {
      const Empty t(line_of("bwd f32", shape, options));
      run(t);
      for (View Views::*gradient : {&Views::grad_q, &Views::grad_k, &Views::grad_v, &Views::grad_sink})
        t.expect_all(gradient, 0);
    }
    run(Empty(line_of("bwd f32", shape, " sink alibi acc")));
  }
}

// Scales are 1 and means 0 where there are no rows. Only blocks of 128 rows are none where a tensor has no rows at all.
TEST(CpuEmpty, Quantise) {
  for (const std::string& shape : shapes()) {
    for (const char* const options : {"", " scales128", " smooth", " smooth scales128 rotate"}) {
      const Empty t(line_of("quantise f32 kv=e4m3", shape, options));
      run(t);
      for (View Views::*scale : {&Views::scale_q, &Views::scale_k, &Views::scale_v}) t.expect_all(scale, 1);
      for (View Views::*mean : {&Views::mean_k, &Views::mean_v}) t.expect_all(mean, 0);
    }
  }
}

// The scale of all rows of a sequence is one, also where there are none.
TEST(CpuEmpty, QuantiseWritesTheScaleOfNoRows) {
  for (const char* const rows : {"sq0 skv4", "sq4 skv0", "sq0 skv0"}) {
    const Problem p = *Problem::parse(text("quantise f32 kv=e4m3 b2 hq2 hkv1 {} d16", rows));
    std::vector<float> x(2 * 2 * 4 * 16), scale_q(4, -5), scale_k(2, -5), scale_v(2, -5);
    std::vector<uint8_t> y(3 * x.size());
    fh_tensors t = fh_tensors_init();
    t.q = {x.data(), 4 * 32, 32, 16};
    t.k = t.v = {x.data(), 4 * 16, 16, 16};
    fh_tensor* const copies[] = {&t.quantised_q, &t.quantised_k, &t.quantised_v};
    for (size_t i = 0; i < 3; ++i) *copies[i] = {y.data() + i * x.size(), i == 0 ? 128 : 64, i == 0 ? 32 : 16, 16};
    t.scale_q = {scale_q.data(), 2, 2, 1};
    t.scale_k = {scale_k.data(), 1, 1, 1};
    t.scale_v = {scale_v.data(), 1, 1, 1};
    const fh_problem user = p.user_struct();
    ASSERT_EQ(fh_attention(&user, "cpu", &t, nullptr, 0, nullptr), FH_OK) << fh_last_error();
    for (const auto* const scales : {&scale_q, &scale_k, &scale_v})
      for (const float scale : *scales) EXPECT_EQ(scale, 1) << rows;
  }
}

}  // namespace
}  // namespace froghopper
