// SPDX-License-Identifier: Apache-2.0
// Reads a Llama's weights from config.json and model.safetensors.
#include "weights.hpp"

#include <algorithm>
#include <bit>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace serve {
namespace {

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

}  // namespace

Weights read_weights(const std::string& folder) {
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
