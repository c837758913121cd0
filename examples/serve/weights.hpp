// SPDX-License-Identifier: Apache-2.0
// A Llama's sizes and weights: random, or from config.json and model.safetensors with Hugging Face's names.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace serve {

using Values = std::vector<float>;

// The sizes of the model that --random makes.
struct Config {
  int64_t vocabulary = 512, width = 256, hidden = 512, layers = 4;
  int64_t heads_q = 8, heads_kv = 2, dim = 32;
  double theta = 10000, epsilon = 1e-5;  // of the rotary embedding; of norms
};

// y = W x for a row x of `in` numbers: W is [out, in].
struct Linear {
  int64_t out = 0, in = 0;
  Values weight{};
};

struct Layer {
  Values before_attention, before_mlp;  // norms
  Linear q, k, v, o, gate, up, down;
};

struct Weights {
  Config config;
  Linear embedding;  // [vocabulary, width]
  std::vector<Layer> layers;
  Values before_head;
  Linear head;
};

// The numbers of a tensor [rows, columns], or [columns] where rows is 0.
using Source = std::function<Values(const std::string& name, int64_t rows, int64_t columns)>;

inline Weights make_weights(const Config& c, const Source& source) {
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    return Linear{out, in, source(name + ".weight", out, in)};
  };
  const auto norm = [&](const std::string& name) { return source(name + ".weight", 0, c.width); };
  Weights weights{c, linear("model.embed_tokens", c.vocabulary, c.width), {}, {}, {}};
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string name = "model.layers." + std::to_string(i) + ".", mlp = name + "mlp.";
    const std::string attention = name + "self_attn.";
    weights.layers.push_back({.before_attention = norm(name + "input_layernorm"),
                              .before_mlp = norm(name + "post_attention_layernorm"),
                              .q = linear(attention + "q_proj", c.heads_q * c.dim, c.width),
                              .k = linear(attention + "k_proj", c.heads_kv * c.dim, c.width),
                              .v = linear(attention + "v_proj", c.heads_kv * c.dim, c.width),
                              .o = linear(attention + "o_proj", c.width, c.heads_q * c.dim),
                              .gate = linear(mlp + "gate_proj", c.hidden, c.width),
                              .up = linear(mlp + "up_proj", c.hidden, c.width),
                              .down = linear(mlp + "down_proj", c.width, c.hidden)});
  }
  weights.before_head = norm("model.norm");
  weights.head = linear("lm_head", c.vocabulary, c.width);
  return weights;
}

// Rows that are about as long as the row they are multiplied with; norms of 1.
inline Weights random_weights(uint32_t seed) {
  std::mt19937 random(seed);
  return make_weights({}, [&](const std::string& name, int64_t rows, int64_t columns) {
    if (rows == 0) return Values(columns, 1.0f);
    const bool is_embedding = name == "model.embed_tokens.weight";
    const float spread = is_embedding ? 1 : std::sqrt(3 / static_cast<float>(columns));
    Values values(rows * columns);
    for (float& x : values) x = spread * (2 * static_cast<float>(random() >> 8) / 0x1p24f - 1);
    return values;
  });
}

// Of FOLDER/config.json and FOLDER/model.safetensors, as transformers writes them. Throws std::runtime_error
// where they are not there or are no Llama.
Weights read_weights(const std::string& folder);

}  // namespace serve
