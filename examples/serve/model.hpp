// SPDX-License-Identifier: Apache-2.0
// A Llama: what its layers do with the rows of a batch. Everything but attention is plain loops over rows that know
// nothing of each other, so a row's numbers do not depend on the batch that it is in.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "attention.hpp"
#include "batch.hpp"
#include "threads.hpp"
#include "weights.hpp"

namespace serve {

class Model {
 public:
  Model(const Weights& weights, int64_t threads) : weights_(weights), c_(weights.config), threads_(threads) {}

  // The tokens with the largest logits after the rows that batch.sampled names.
  std::vector<int32_t> forward(const Batch& batch, Attention& attention) {
    attention.begin(batch);
    Values x = rows_of(weights_.embedding.weight, batch.tokens);
    for (int64_t i = 0; i < c_.layers; ++i) {
      const Layer& layer = weights_.layers[i];
      add(x, attend(layer, i, normed(x, layer.before_attention), batch, attention));
      add(x, mlp(layer, normed(x, layer.before_mlp)));
    }
    return largest(linear(weights_.head, normed(rows_of(x, batch.sampled), weights_.before_head)));
  }

 private:
  Values attend(const Layer& layer, int64_t number, const Values& x, const Batch& batch, Attention& attention) {
    Values q = linear(layer.q, x), k = linear(layer.k, x);
    rotate(q, c_.heads_q, batch.positions);
    rotate(k, c_.heads_kv, batch.positions);
    attention.append(number, k, linear(layer.v, x));
    return linear(layer.o, attention.run(number, q));
  }

  Values mlp(const Layer& layer, const Values& x) {
    Values gate = linear(layer.gate, x);
    const Values up = linear(layer.up, x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    return linear(layer.down, gate);
  }

  // y = W x for each row x. Each thread takes some rows of W, which stay in its cache while all rows of x go by. The
  // sums are kept in lanes, so that compilers may use vectors.
  Values linear(const Linear& w, const Values& x) {
    constexpr int64_t lanes = 16;
    const int64_t rows = static_cast<int64_t>(x.size()) / w.in, whole = w.in / lanes * lanes;
    Values y(rows * w.out);
    threads_.share(w.out, [&](int64_t begin, int64_t end) {
      for (int64_t out = begin; out < end; ++out)
        for (int64_t row = 0; row < rows; ++row) {
          const float *const a = &w.weight[out * w.in], *const b = &x[row * w.in];
          std::array<float, lanes> sums{};
          for (int64_t i = 0; i < whole; i += lanes)
            for (int64_t lane = 0; lane < lanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
          float sum = 0;
          for (const float lane : sums) sum += lane;
          for (int64_t i = whole; i < w.in; ++i) sum += a[i] * b[i];
          y[row * w.out + out] = sum;
        }
    });
    return y;
  }

  // x / rms(x), times a gain for each column.
  Values normed(Values x, const Values& gain) const {
    for (size_t row = 0; row < x.size(); row += gain.size()) {
      float square = 0;
      for (size_t i = 0; i < gain.size(); ++i) square += x[row + i] * x[row + i];
      const float scale = 1 / std::sqrt(square / static_cast<float>(gain.size()) + static_cast<float>(c_.epsilon));
      for (size_t i = 0; i < gain.size(); ++i) x[row + i] *= scale * gain[i];
    }
    return x;
  }

  // Rotary embedding: columns i and i + dim / 2 of a head are turned by position / theta^(2 i / dim).
  void rotate(Values& x, int64_t heads, const std::vector<int32_t>& positions) const {
    const int64_t half = c_.dim / 2;
    for (size_t row = 0; row < positions.size(); ++row)
      for (int64_t i = 0; i < half; ++i) {
        const double angle = positions[row] * std::pow(c_.theta, -static_cast<double>(i) / static_cast<double>(half));
        const auto cos = static_cast<float>(std::cos(angle)), sin = static_cast<float>(std::sin(angle));
        for (int64_t head = 0; head < heads; ++head) {
          float& low = x[(row * heads + head) * c_.dim + i];
          float& high = *(&low + half);
          const float turned = low * cos - high * sin;
          high = high * cos + low * sin, low = turned;
        }
      }
  }

  static void add(Values& to, const Values& what) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += what[i];
  }

  template <class Index>
  Values rows_of(const Values& matrix, const std::vector<Index>& rows) const {
    Values some;
    for (const Index row : rows) {
      const auto begin = matrix.begin() + static_cast<int64_t>(row) * c_.width;
      some.insert(some.end(), begin, begin + c_.width);
    }
    return some;
  }

  std::vector<int32_t> largest(const Values& logits) const {
    std::vector<int32_t> tokens;
    for (auto row = logits.begin(); row != logits.end(); row += c_.vocabulary)
      tokens.push_back(static_cast<int32_t>(std::max_element(row, row + c_.vocabulary) - row));
    return tokens;
  }

  const Weights& weights_;
  const Config c_;
  Threads threads_;
};

}  // namespace serve
