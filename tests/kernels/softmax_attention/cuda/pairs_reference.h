// Softmax attention and its gradients pair by pair in fp64, by definition, with error bounds for
// kernels that round tensor-core operands and stored values to bf16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/philox.h"

namespace halflife::kernels::test {

// Like SoftmaxAttentionArgs, with contiguous arrays.
struct PairsProblem {
  int batch = 1, num_queries = 0, num_past = 0, heads = 1, kv_heads = 1, dim = 0, dim_v = 0;
  double scale = 1;
  bool squared_relu = false;
  int num_sinks = 0;
  std::vector<int32_t> first, end, sinks;  // [B, T]
  std::vector<double> q, k, v, dout;       // [B, T, H, d], [B, S, Hk, d], [B, S, Hk, V], as out
  std::vector<double> bias;                // [H, stride] or empty
  int64_t bias_stride = 0, bias_zero = 0;
  std::vector<double> bias_scale;  // [B, T] or empty: 1
  double dropout = 0;              // Dropout rate.
  std::vector<uint64_t> samples;   // [B], with dropout.
  RandomKey key = {};

  int num_keys() const { return num_past + num_queries; }
};

// A value and its error bound in units of bf16's relative rounding, 2^-8. Each rounded operand
// contributes its magnitude times the other factor.
struct Bounded {
  std::vector<double> value, bound;
  explicit Bounded(size_t size) : value(size), bound(size) {}
  void Add(size_t i, double x, double off) { value[i] += x, bound[i] += off; }
};
struct PairsResult {
  Bounded out, dq, dk, dv, dbias;  // dbias [B, H, stride]
  std::vector<double> log_sum;     // [B, T, H]
};
PairsResult PairsReference(const PairsProblem& problem);

}  // namespace halflife::kernels::test
