// SPDX-License-Identifier: Apache-2.0
// A small transformer learns a text, character by character. Attention and its gradients are froghopper's; the rest is
// plain loops, each layer with its backward pass below its forward pass.
//
//   train TEXT                500 steps; prints the loss, the mean of -log(probability of the character that comes)
//   train TEXT --reference    the same with attention and its gradients as plain loops in double precision
//   train TEXT --check        40 steps of both: returns 0 if the loss falls and both give the same losses
//
// It runs on the CPU, in f32. On a Hopper GPU q, k, v, o and their gradients would be bf16 in GPU memory.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <froghopper/froghopper.hpp>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

using Values = std::vector<float>;

constexpr int64_t batch = 8, window = 64;  // windows of the text that a step reads, and their characters
constexpr int64_t rows = batch * window;
constexpr int64_t heads = 4, dim = 16, width = heads * dim;
constexpr int64_t steps = 500, check_steps = 40;

// What is learned: values, and for each its gradient and the two running means of Adam.
struct Parameter {
  Values value, grad, mean, square;
};

struct Parameters {
  std::deque<Parameter> all;  // a deque, so that layers may keep references
  std::mt19937 random{1};

  // Values at most spread away from middle.
  Parameter& make(int64_t size, float spread, float middle = 0) {
    Parameter& p = all.emplace_back();
    for (Values* const part : {&p.value, &p.grad, &p.mean, &p.square}) part->assign(size, 0.0f);
    for (float& x : p.value) x = middle + spread * (2 * static_cast<float>(random()) / 0x1p32f - 1);
    return p;
  }

  // Adam. step counts from 1.
  void update(int64_t step) {
    constexpr float rate = 3e-3f, keep = 0.9f, keep_square = 0.99f, tiny = 1e-8f;
    const float mean_part = 1 - std::pow(keep, static_cast<float>(step));
    const float square_part = 1 - std::pow(keep_square, static_cast<float>(step));
    for (Parameter& p : all)
      for (size_t i = 0; i < p.value.size(); ++i) {
        const float grad = std::exchange(p.grad[i], 0.0f);
        p.mean[i] = keep * p.mean[i] + (1 - keep) * grad;
        p.square[i] = keep_square * p.square[i] + (1 - keep_square) * grad * grad;
        p.value[i] -= rate * p.mean[i] / mean_part / (std::sqrt(p.square[i] / square_part) + tiny);
      }
  }
};

// A matrix that is read: element (i, k) is at data[i * row + k * column].
struct Matrix {
  const float* data;
  int64_t row, column;
};

// out += a b, where b is [inner, columns] and out is [height, columns].
void add_product(Matrix a, const float* b, float* out, int64_t height, int64_t inner, int64_t columns) {
  for (int64_t i = 0; i < height; ++i)
    for (int64_t k = 0; k < inner; ++k) {
      const float x = a.data[i * a.row + k * a.column];
      for (int64_t j = 0; j < columns; ++j) out[i * columns + j] += x * b[k * columns + j];
    }
}

void add(Values& to, const Values& what) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += what[i];
}

// y = x weight.
struct Linear {
  Parameters& parameters;
  int64_t in, out;
  Parameter& weight = parameters.make(in * out, 1 / std::sqrt(static_cast<float>(in)));
  Values x{};

  Values forward(Values input) {
    x = std::move(input);
    Values y(rows * out);
    add_product({x.data(), in, 1}, weight.value.data(), y.data(), rows, in, out);
    return y;
  }
  Values backward(const Values& grad_y) {
    add_product({x.data(), 1, in}, grad_y.data(), weight.grad.data(), in, rows, out);
    Values transposed(in * out), grad_x(rows * in);
    for (int64_t i = 0; i < in; ++i)
      for (int64_t j = 0; j < out; ++j) transposed[j * in + i] = weight.value[i * out + j];
    add_product({grad_y.data(), out, 1}, transposed.data(), grad_x.data(), rows, out, in);
    return grad_x;
  }
};

// y = gain (x - mean) / deviation, row by row.
struct LayerNorm {
  Parameters& parameters;
  Parameter& gain = parameters.make(width, 0, 1);
  Values normal{}, inverse = Values(rows);  // what gain multiplies; 1 / deviation

  Values forward(const Values& x) {
    normal = x;
    Values y(x.size());
    for (int64_t row = 0; row < rows; ++row) {
      float* const n = &normal[row * width];
      float mean = 0, square = 0;
      for (int64_t c = 0; c < width; ++c) mean += n[c] / width;
      for (int64_t c = 0; c < width; ++c) square += (n[c] - mean) * (n[c] - mean) / width;
      inverse[row] = 1 / std::sqrt(square + 1e-5f);
      for (int64_t c = 0; c < width; ++c) n[c] = (n[c] - mean) * inverse[row];
      for (int64_t c = 0; c < width; ++c) y[row * width + c] = gain.value[c] * n[c];
    }
    return y;
  }
  Values backward(const Values& grad_y) {
    Values grad_x(grad_y.size());
    for (int64_t row = 0; row < rows; ++row) {
      const float *const n = &normal[row * width], *const gy = &grad_y[row * width];
      float mean = 0, along = 0;  // of the gradient of n; how much of it goes along n
      for (int64_t c = 0; c < width; ++c) mean += gy[c] * gain.value[c] / width;
      for (int64_t c = 0; c < width; ++c) along += gy[c] * gain.value[c] * n[c] / width;
      for (int64_t c = 0; c < width; ++c) gain.grad[c] += gy[c] * n[c];
      for (int64_t c = 0; c < width; ++c)
        grad_x[row * width + c] = inverse[row] * (gy[c] * gain.value[c] - mean - n[c] * along);
    }
    return grad_x;
  }
};

// Causal attention by froghopper: a plan for each direction, made once. A row of qkv holds q, k and v side by side, so
// they are three tensors with the same strides, and so are their gradients.
struct Froghopper {
  froghopper::Plan forward_plan{problem(froghopper::Op::forward), "cpu"};
  froghopper::Plan backward_plan{problem(froghopper::Op::backward), "cpu"};

  void forward(Values& qkv, Values& o, Values& lse) const { forward_plan.run(tensors(qkv, o, lse)); }

  void backward(Values& qkv, Values& o, Values& lse, const Values& grad_o, Values& grad_qkv) const {
    froghopper::Tensors t = tensors(qkv, o, lse);
    t.grad_o = froghopper::dense(grad_o.data(), window, heads, dim);
    t.grad_q = third(grad_qkv, 0), t.grad_k = third(grad_qkv, 1), t.grad_v = third(grad_qkv, 2);
    backward_plan.run(t);
  }

  static froghopper::Problem problem(froghopper::Op op) {
    froghopper::Problem p{.op = op, .dtype = froghopper::Dtype::f32, .batch = batch, .causal = true};
    p.heads_q = p.heads_kv = heads, p.seq_q = p.seq_kv = window, p.dim_qk = dim;
    return p;
  }
  static froghopper::Tensor third(Values& qkv, int64_t which) {
    return {&qkv[which * width], window * 3 * width, 3 * width, dim};
  }
  static froghopper::Tensors tensors(Values& qkv, Values& o, Values& lse) {
    const froghopper::Tensor dense_o = froghopper::dense(o.data(), window, heads, dim);
    return {.q = third(qkv, 0), .k = third(qkv, 1), .v = third(qkv, 2), .o = dense_o, .lse = lse.data()};
  }
};

// The same as plain loops in double precision, which need no o and no lse for the gradients. n counts the heads of all
// windows.
struct Reference {
  static void forward(const Values& qkv, Values& o) {
    for (int64_t n = 0; n < batch * heads; ++n)
      for (int64_t i = 0; i < window; ++i) {
        const std::vector<double> p = weights(qkv, n, i);
        for (int64_t c = 0; c < dim; ++c) {
          double sum = 0;
          for (int64_t j = 0; j <= i; ++j) sum += p[j] * qkv[in_qkv(2, n, j) + c];
          o[in_o(n, i) + c] = static_cast<float>(sum);
        }
      }
  }

  static void backward(const Values& qkv, const Values& grad_o, Values& grad_qkv) {
    std::vector<double> grad(qkv.size());
    for (int64_t n = 0; n < batch * heads; ++n)
      for (int64_t i = 0; i < window; ++i) {
        const float* const grad_row = &grad_o[in_o(n, i)];
        const std::vector<double> p = weights(qkv, n, i);
        std::vector<double> grad_p(p.size());
        double delta = 0;  // the sum of p grad_p
        for (int64_t j = 0; j <= i; ++j) {
          for (int64_t c = 0; c < dim; ++c) grad_p[j] += double{grad_row[c]} * qkv[in_qkv(2, n, j) + c];
          delta += p[j] * grad_p[j];
        }
        for (int64_t j = 0; j <= i; ++j) {
          const double grad_score = p[j] * (grad_p[j] - delta) * scale;
          for (int64_t c = 0; c < dim; ++c) {
            grad[in_qkv(0, n, i) + c] += grad_score * qkv[in_qkv(1, n, j) + c];
            grad[in_qkv(1, n, j) + c] += grad_score * qkv[in_qkv(0, n, i) + c];
            grad[in_qkv(2, n, j) + c] += p[j] * grad_row[c];
          }
        }
      }
    std::copy(grad.begin(), grad.end(), grad_qkv.begin());
  }

  static constexpr double scale = 0.25;  // 1 / sqrt(dim)
  static_assert(scale * scale * dim == 1);

  static int64_t in_o(int64_t n, int64_t row) { return (n / heads * window + row) * width + n % heads * dim; }
  static int64_t in_qkv(int64_t third, int64_t n, int64_t row) {
    return ((n / heads * window + row) * 3 + third) * width + n % heads * dim;
  }
  // Of row i: the softmax of its scores with keys 0 to i.
  static std::vector<double> weights(const Values& qkv, int64_t n, int64_t i) {
    std::vector<double> p(i + 1);
    for (int64_t j = 0; j <= i; ++j)
      for (int64_t c = 0; c < dim; ++c) p[j] += double{qkv[in_qkv(0, n, i) + c]} * qkv[in_qkv(1, n, j) + c];
    const double largest = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp((x - largest) * scale);
    for (double& x : p) x /= sum;
    return p;
  }
};

// x + attention(norm(x)), then x + mlp(norm(x)).
struct Block {
  Parameters& parameters;
  const Froghopper* froghopper;  // nullptr: the reference
  LayerNorm before_attention{parameters}, before_mlp{parameters};
  Linear to_qkv{parameters, width, 3 * width}, from_o{parameters, width, width};
  Linear up{parameters, width, 4 * width}, down{parameters, 4 * width, width};
  Values qkv{}, o = Values(rows * width), lse = Values(rows * heads), hidden{};

  Values forward(Values x) {
    qkv = to_qkv.forward(before_attention.forward(x));
    froghopper ? froghopper->forward(qkv, o, lse) : Reference::forward(qkv, o);
    add(x, from_o.forward(o));
    hidden = up.forward(before_mlp.forward(x));
    Values active(hidden);
    for (float& u : active) u *= logistic(u);
    add(x, down.forward(std::move(active)));
    return x;
  }
  Values backward(Values grad) {
    Values grad_hidden = down.backward(grad), grad_qkv(qkv.size());
    for (size_t i = 0; i < hidden.size(); ++i) {
      const float s = logistic(hidden[i]);
      grad_hidden[i] *= s * (1 + hidden[i] * (1 - s));
    }
    add(grad, before_mlp.backward(up.backward(grad_hidden)));
    const Values grad_o = from_o.backward(grad);
    froghopper ? froghopper->backward(qkv, o, lse, grad_o, grad_qkv) : Reference::backward(qkv, grad_o, grad_qkv);
    add(grad, before_attention.backward(to_qkv.backward(grad_qkv)));
    return grad;
  }

  static float logistic(float x) { return 1 / (1 + std::exp(-x)); }
};

// Characters become vectors, go through the blocks, and become scores of the characters that may come next.
struct Model {
  int64_t characters;
  const Froghopper* froghopper;
  Parameters parameters{};
  Parameter &letter = parameters.make(characters * width, 0.5f), &place = parameters.make(window * width, 0.5f);
  Block low{parameters, froghopper}, high{parameters, froghopper};
  LayerNorm before_head{parameters};
  Linear head{parameters, width, characters};

  // One step: the loss before it. next[i] is the character that comes after read[i].
  double learn(const std::vector<int64_t>& read, const std::vector<int64_t>& next, int64_t step) {
    Values x(rows * width);
    for (int64_t i = 0; i < rows * width; ++i)
      x[i] = letter.value[read[i / width] * width + i % width] + place.value[i % (window * width)];
    Values scores = head.forward(before_head.forward(high.forward(low.forward(std::move(x)))));
    const double loss = cross_entropy(scores, next);
    const Values grad = low.backward(high.backward(before_head.backward(head.backward(scores))));
    for (int64_t i = 0; i < rows * width; ++i) {
      letter.grad[read[i / width] * width + i % width] += grad[i];
      place.grad[i % (window * width)] += grad[i];
    }
    parameters.update(step);
    return loss;
  }

  // The mean loss of the rows; scores become its gradient, (probabilities - what came) / rows.
  double cross_entropy(Values& scores, const std::vector<int64_t>& next) const {
    double loss = 0;
    for (int64_t row = 0; row < rows; ++row) {
      float* const s = &scores[row * characters];
      const float largest = *std::max_element(s, s + characters), right = s[next[row]];
      float sum = 0;
      for (int64_t c = 0; c < characters; ++c) sum += s[c] = std::exp(s[c] - largest);
      for (int64_t c = 0; c < characters; ++c) s[c] /= sum * rows;
      s[next[row]] -= 1.0f / rows;
      loss += (std::log(sum) - (right - largest)) / rows;
    }
    return loss;
  }
};

// Trains a new model and returns the loss of every step. Windows are drawn alike in every run.
std::vector<double> train(const std::string& text, int64_t last, bool reference) {
  std::string alphabet = text;
  std::sort(alphabet.begin(), alphabet.end());
  alphabet.erase(std::unique(alphabet.begin(), alphabet.end()), alphabet.end());
  const Froghopper froghopper;
  Model model{static_cast<int64_t>(alphabet.size()), reference ? nullptr : &froghopper};
  std::mt19937 random(2);
  std::vector<double> losses;
  std::vector<int64_t> read(rows), next(rows);
  for (int64_t step = 1; step <= last; ++step) {
    for (int64_t row = 0, begin = 0; row < rows; ++row) {
      if (row % window == 0) begin = static_cast<int64_t>(random() % (text.size() - window));
      read[row] = static_cast<int64_t>(alphabet.find(text[begin + row % window]));
      next[row] = static_cast<int64_t>(alphabet.find(text[begin + row % window + 1]));
    }
    losses.push_back(model.learn(read, next, step));
    if (step == 1 || step % 20 == 0) std::printf("step %4d  loss %.4f\n", static_cast<int>(step), losses.back());
  }
  return losses;
}

// Whether froghopper's losses fall, and are the reference's but for rounding: that made 1e-8 to 7e-8 with 8 seeds.
bool check(const std::string& text) {
  const std::vector<double> losses = train(text, check_steps, false), expected = train(text, check_steps, true);
  double worst = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double off = std::abs(losses[i] - expected[i]) / expected[i];
    if (!(off <= worst)) worst = off;  // also where it is no number
  }
  std::printf("largest relative difference of the losses %.1e\n", worst);
  return worst < 1e-6 && losses.back() < 0.8 * losses.front();
}

int main(int arguments, char** argument) try {
  const std::string mode = arguments == 3 ? argument[2] : "";
  if (arguments < 2 || arguments > 3 || (arguments == 3 && mode != "--reference" && mode != "--check"))
    return std::fprintf(stderr, "usage: train TEXT [--reference | --check]\n"), 2;
  std::ifstream file(argument[1], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.size() <= window)
    return std::fprintf(stderr, "%s: no text of more than %d characters\n", argument[1], int{window}), 2;
  if (mode == "--check") return check(text) ? 0 : 1;
  train(text, steps, mode == "--reference");
} catch (const froghopper::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
