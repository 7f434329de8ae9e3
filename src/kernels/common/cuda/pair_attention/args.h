// Arguments of the kernels that process pairs of tokens tile by tile: attention whose weights are a
// function of each pair's score. Kernel families convert their own arguments to these. C++17.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/dropout_draws.h"
#include "kernels/common/host_device.h"
#include "kernels/common/tensor_view.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels::pairs {

// The weight w(s) of a score s = scale q . k + bias, and the divisor of an output, which is the sum
// of w v:
enum class Weight : uint8_t {
  kSoftmax,      // e^s, divided by the sum of weights
  kSquaredRelu,  // max(0, s)^2, divided by the number of keys that the query sees
  kPolynomial,   // a0 + a1 s + a2 s^2, divided by the sum of weights + norm_eps, or not divided
};

// B rows, T queries, S keys, H heads of queries and Hk of keys; width d up to 128, and any V. Query
// t is key num_past + t of its row. bf16.
struct PairAttentionArgs {
  int batch = 0, num_queries = 0, num_keys = 0, num_past = 0;
  int num_heads = 0, num_kv_heads = 0;
  int head_dim = 0, head_dim_v = 0;
  float scale = 1;
  Weight weight = Weight::kSoftmax;
  float a0 = 0, a1 = 0, a2 = 0;  // coefficients of a polynomial
  bool normalise = true;         // for a polynomial: whether the output is divided
  float norm_eps = 0;

  TensorView q, k, v, out;  // [B, T, H, d], [B, S, Hk, d], [B, S, Hk, V], [B, T, H, V]

  // Query t of row b sees keys [first, end), and [sinks, sinks + num_sinks) before `first`. All are
  // [B, T].
  const int32_t *first = nullptr, *end = nullptr, *sinks = nullptr;
  int num_sinks = 0;

  // [H, bias_stride]: element bias_zero - distance is the bias of a distance; null: no bias.
  const float* bias = nullptr;
  int64_t bias_stride = 0, bias_zero = 0;
  const float* bias_scale = nullptr;  // [B, T], a factor on each query's bias; null: 1
  // Dropout of the weights that multiply v; the sum in the divisor includes dropped weights.
  // Queries and keys are counted from the row's beginning.
  PairDropout dropout;

  // [B, T, H]: for a softmax the logarithm of the sum of weights; for a normalized polynomial their
  // sum + norm_eps. Null in a forward: not computed.
  float* normaliser = nullptr;

  // Returns true if outputs are divided by the sum of their weights, which then has a gradient.
  HL_EVERYWHERE bool divides() const {
    return weight == Weight::kSoftmax || (weight == Weight::kPolynomial && normalise);
  }
};

struct PairAttentionGradArgs {
  PairAttentionArgs forward;
  TensorView dout, dq, dk, dv;
  float* dbias = nullptr;  // [B, H, bias_stride], every element is written; null: not computed
  void* workspace =
      nullptr;  // WorkspaceBytes(), aligned to 16; contents undefined before and after
};

// Returns the workspace size of a backward.
size_t WorkspaceBytes(const PairAttentionGradArgs& grads);
// Asynchronous on `stream`. Throw an error for arguments that the kernels do not support.
void Forward(const PairAttentionArgs& args, cudaStream_t stream);
void Backward(const PairAttentionGradArgs& grads, cudaStream_t stream);

}  // namespace halflife::kernels::pairs
