// SPDX-License-Identifier: Apache-2.0
// Attention's forward and backward pass on a Hopper GPU in C++, captured in one CUDA graph and replayed, as the layer
// of a training step; the gradients are compared with the CPU backend's. Returns 77 where there is no Hopper GPU.
#include <cuda_runtime_api.h>
#include <froghopper/froghopper.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <vector>

using froghopper::dense, froghopper::Plan, froghopper::Problem, froghopper::Tensors;

constexpr int64_t batch = 2, heads_q = 8, heads_kv = 2, seq = 300, dim = 64;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// GPU memory that a vector of bf16 or float is copied to and from.
template <class T>
struct OnGpu {
  explicit OnGpu(size_t count) : count(count) {
    check(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T)));
  }
  explicit OnGpu(const std::vector<T>& host) : OnGpu(host.size()) {
    check(cudaMemcpy(data, host.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu() { cudaFree(data); }

  std::vector<T> copied() const {
    std::vector<T> host(count);
    check(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

  T* data = nullptr;
  size_t count;
};

using bf16 = uint16_t;  // the upper half of a float

std::vector<bf16> random(int64_t count, std::mt19937& engine) {
  std::vector<bf16> values(count);
  for (auto& x : values) x = bf16(std::bit_cast<uint32_t>(float(int(engine() % 255) - 127) / 64) >> 16);
  return values;
}

float to_float(bf16 x) { return std::bit_cast<float>(uint32_t(x) << 16); }

// What both passes read and write, in memory of the host or of a GPU.
Tensors tensors(bf16* q, bf16* k, bf16* v, bf16* o, float* lse, bf16* grad_o, bf16* grad_q, bf16* grad_k,
                bf16* grad_v) {
  Tensors t{.q = dense(q, seq, heads_q, dim),
            .k = dense(k, seq, heads_kv, dim),
            .v = dense(v, seq, heads_kv, dim),
            .o = dense(o, seq, heads_q, dim),
            .lse = lse};
  if (grad_o == nullptr) return t;
  t.grad_o = dense(grad_o, seq, heads_q, dim), t.grad_q = dense(grad_q, seq, heads_q, dim);
  t.grad_k = dense(grad_k, seq, heads_kv, dim), t.grad_v = dense(grad_v, seq, heads_kv, dim);
  return t;
}

double largest_difference(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(to_float(a[i]) - to_float(b[i]));
    if (!(difference <= worst)) worst = difference;  // also where it is not a number
  }
  return worst;
}

int run() {
  Problem forward{.batch = batch,
                  .heads_q = heads_q,
                  .heads_kv = heads_kv,
                  .seq_q = seq,
                  .seq_kv = seq,
                  .dim_qk = dim,
                  .causal = true};
  Problem backward = forward;
  backward.op = froghopper::Op::backward;
  const Plan there(forward, "hopper"), back(backward, "hopper");
  std::printf("%s\n%s\n", there.line().c_str(), back.line().c_str());

  constexpr int64_t of_q = batch * seq * heads_q * dim, of_k = batch * seq * heads_kv * dim;
  std::mt19937 engine(1);
  std::vector<bf16> q = random(of_q, engine), k = random(of_k, engine), v = random(of_k, engine);
  std::vector<bf16> grad_o = random(of_q, engine);

  OnGpu<bf16> gpu_q(q), gpu_k(k), gpu_v(v), gpu_grad_o(grad_o), gpu_o(of_q);
  OnGpu<bf16> gpu_grad_q(of_q), gpu_grad_k(of_k), gpu_grad_v(of_k);
  OnGpu<float> gpu_lse(batch * heads_q * seq);
  // The passes run one after the other on one stream, so one workspace serves both.
  OnGpu<char> workspace(std::max(there.workspace_bytes(), back.workspace_bytes()) + 1);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream));

  cudaGraph_t graph;
  cudaGraphExec_t step;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  there.run(tensors(gpu_q.data, gpu_k.data, gpu_v.data, gpu_o.data, gpu_lse.data, nullptr, nullptr, nullptr, nullptr),
            workspace.data, workspace.count, stream);
  back.run(tensors(gpu_q.data, gpu_k.data, gpu_v.data, gpu_o.data, gpu_lse.data, gpu_grad_o.data, gpu_grad_q.data,
                   gpu_grad_k.data, gpu_grad_v.data),
           workspace.data, workspace.count, stream);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiateWithFlags(&step, graph, 0));
  for (int i = 0; i < 3; ++i) check(cudaGraphLaunch(step, stream));
  check(cudaStreamSynchronize(stream));

  std::vector<bf16> o(of_q), grad_q(of_q), grad_k(of_k), grad_v(of_k);
  std::vector<float> lse(batch * heads_q * seq);
  froghopper::attention(
      forward, tensors(q.data(), k.data(), v.data(), o.data(), lse.data(), nullptr, nullptr, nullptr, nullptr),
      "cpu");
  froghopper::attention(backward,
                        tensors(q.data(), k.data(), v.data(), o.data(), lse.data(), grad_o.data(), grad_q.data(),
                                grad_k.data(), grad_v.data()),
                        "cpu");
  const double worst =
      std::max({largest_difference(gpu_o.copied(), o), largest_difference(gpu_grad_q.copied(), grad_q),
                largest_difference(gpu_grad_k.copied(), grad_k), largest_difference(gpu_grad_v.copied(), grad_v)});
  std::printf("o and gradients, largest difference from the CPU %.1e\n", worst);
  return worst < 0.1 ? 0 : 1;  // gradients of up to 16 are rounded to bf16 on both sides
}

int main() {
  try {
    return run();
  } catch (const froghopper::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.status() == FH_NO_DEVICE ? 77 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
