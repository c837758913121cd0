// SPDX-License-Identifier: Apache-2.0
// A Llama's sizes and weights: random, or from config.json and model.safetensors with Hugging Face's names.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
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

// A safetensors file: eight bytes that say how long the header is, the header in JSON, the numbers.
class Safetensors {
 public:
  explicit Safetensors(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    uint64_t length = 0;
    file_.read(reinterpret_cast<char*>(&length), sizeof length);
    if (!file_ || length > (uint64_t{100} << 20)) throw std::runtime_error(path + ": no safetensors file");
    std::string header(length, ' ');
    file_.read(header.data(), static_cast<std::streamsize>(length));
    header_ = nlohmann::json::parse(header);
    data_ = file_.tellg();
  }

  bool has(const std::string& name) const { return header_.contains(name); }

  Values read(const std::string& name, int64_t rows, int64_t columns) {
    if (!has(name)) throw std::runtime_error(path_ + ": there is no tensor " + name);
    const auto& tensor = header_[name];
    const std::string type = tensor["dtype"];
    const std::vector<int64_t> shape = rows == 0 ? std::vector{columns} : std::vector{rows, columns};
    if (tensor["shape"] != nlohmann::json(shape) || (type != "F32" && type != "BF16"))
      throw std::runtime_error(path_ + ": " + name + " is " + type + " " + tensor["shape"].dump() +
                               "; it must be F32 or BF16 " + nlohmann::json(shape).dump());
    Values values(std::max<int64_t>(rows, 1) * columns);
    file_.seekg(data_ + static_cast<std::streamoff>(tensor["data_offsets"][0].get<int64_t>()));
    if (type == "F32") {
      read_into(values);
    } else {
      std::vector<uint16_t> upper(values.size());
      read_into(upper);
      for (size_t i = 0; i < values.size(); ++i) values[i] = std::bit_cast<float>(uint32_t{upper[i]} << 16);
    }
    return values;
  }

 private:
  template <class T>
  void read_into(std::vector<T>& numbers) {
    file_.read(reinterpret_cast<char*>(numbers.data()), static_cast<std::streamsize>(numbers.size() * sizeof(T)));
    if (!file_) throw std::runtime_error(path_ + ": the file ends too early");
  }

  std::string path_;
  std::ifstream file_;
  nlohmann::json header_;
  std::streamoff data_ = 0;
};

inline Weights read_weights(const std::string& folder) {
  std::ifstream file(folder + "/config.json");
  if (!file) throw std::runtime_error(folder + "/config.json cannot be read");
  const auto json = nlohmann::json::parse(file);
  const auto rope = json.value("rope_parameters", json);  // where newer files have theta
  if (json.value("rope_scaling", nlohmann::json()) != nullptr || rope.value("rope_type", "default") != "default")
    throw std::runtime_error(folder + "/config.json asks for scaled rotary embeddings, which this example lacks");
  Config c{.vocabulary = json.at("vocab_size"),
           .width = json.at("hidden_size"),
           .hidden = json.at("intermediate_size"),
           .layers = json.at("num_hidden_layers"),
           .heads_q = json.at("num_attention_heads"),
           .heads_kv = json.at("num_key_value_heads"),
           .theta = rope.value("rope_theta", 10000.0),
           .epsilon = json.at("rms_norm_eps")};
  c.dim = json.value("head_dim", c.width / c.heads_q);
  Safetensors tensors(folder + "/model.safetensors");
  return make_weights(c, [&](const std::string& name, int64_t rows, int64_t columns) {
    const bool tied = name == "lm_head.weight" && !tensors.has(name);
    return tensors.read(tied ? "model.embed_tokens.weight" : name, rows, columns);
  });
}

}  // namespace serve
