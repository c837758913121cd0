// SPDX-License-Identifier: Apache-2.0
// The same Llama for one sequence alone, as plain loops in double precision over all of its tokens: no pages, no cache,
// no batch, nothing of model.hpp. Tokens that were served are compared with its logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "weights.hpp"

namespace serve {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

class Reference {
 public:
  explicit Reference(const Weights& weights) : weights_(weights), c_(weights.config) {}

  // What comes after each of the tokens.
  Rows logits(const std::vector<int32_t>& tokens) const {
    Rows x;
    for (const int32_t token : tokens) {
      const float* const begin = &weights_.embedding.weight[token * c_.width];
      x.emplace_back(begin, begin + c_.width);
    }
    for (const Layer& layer : weights_.layers) {
      const Rows o = attention(layer, x);
      for (size_t i = 0; i < x.size(); ++i) add(x[i], multiply(layer.o, o[i]));
      for (Row& row : x) add(row, mlp(layer, norm(row, layer.before_mlp)));
    }
    Rows logits;
    for (const Row& row : x) logits.push_back(multiply(weights_.head, norm(row, weights_.before_head)));
    return logits;
  }

 private:
  Rows attention(const Layer& layer, const Rows& x) const {
    Rows q, k, v, o;
    for (size_t i = 0; i < x.size(); ++i) {
      const Row normal = norm(x[i], layer.before_attention);
      q.push_back(rotated(multiply(layer.q, normal), static_cast<double>(i)));
      k.push_back(rotated(multiply(layer.k, normal), static_cast<double>(i)));
      v.push_back(multiply(layer.v, normal));
      o.emplace_back(c_.heads_q * c_.dim);
      for (int64_t head = 0; head < c_.heads_q; ++head) attend(q[i], k, v, head, o[i]);
    }
    return o;
  }

  // One head of one row, which sees the rows that k and v have so far.
  void attend(const Row& q, const Rows& k, const Rows& v, int64_t head, Row& o) const {
    const int64_t in_q = head * c_.dim, in_kv = head / (c_.heads_q / c_.heads_kv) * c_.dim;
    Row p;
    for (const Row& key : k) {
      double score = 0;
      for (int64_t i = 0; i < c_.dim; ++i) score += q[in_q + i] * key[in_kv + i];
      p.push_back(score / std::sqrt(static_cast<double>(c_.dim)));
    }
    const double largest = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - largest);
    for (size_t j = 0; j < v.size(); ++j)
      for (int64_t i = 0; i < c_.dim; ++i) o[in_q + i] += p[j] / sum * v[j][in_kv + i];
  }

  Row mlp(const Layer& layer, const Row& x) const {
    Row gate = multiply(layer.gate, x);
    const Row up = multiply(layer.up, x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    return multiply(layer.down, gate);
  }

  static Row multiply(const Linear& w, const Row& x) {
    Row y(w.out);
    for (int64_t out = 0; out < w.out; ++out) {
      double sum = 0;
      for (int64_t in = 0; in < w.in; ++in) sum += w.weight[out * w.in + in] * x[in];
      y[out] = sum;
    }
    return y;
  }

  Row norm(Row x, const Values& gain) const {
    double square = 0;
    for (const double value : x) square += value * value;
    const double rms = std::sqrt(square / static_cast<double>(x.size()) + c_.epsilon);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= gain[i] / rms;
    return x;
  }

  Row rotated(const Row& x, double position) const {
    Row turned(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const auto column = static_cast<int64_t>(i) % c_.dim, half = c_.dim / 2;
      const double angle =
          position / std::pow(c_.theta, 2 * static_cast<double>(column % half) / static_cast<double>(c_.dim));
      const double other = column < half ? -x[i + half] : x[i - half];
      turned[i] = x[i] * std::cos(angle) + other * std::sin(angle);
    }
    return turned;
  }

  static void add(Row& to, const Row& what) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += what[i];
  }

  const Weights& weights_;
  const Config c_;
};

}  // namespace serve
