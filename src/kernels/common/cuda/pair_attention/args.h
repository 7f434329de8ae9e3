// What the kernels that meet pairs of tokens tile by tile read and write: attention whose weights
// are a function of each pair's score. Families convert their own arguments to these. C++17.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/dropout_draws.h"
#include "kernels/common/host_device.h"
#include "kernels/common/tensor_view.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels::pairs {

// w(s) of a score s = scale q . k + bias, and what an output, the sum of w v, is divided by:
enum class Weight : uint8_t {
  kSoftmax,      // e^s, over the sum of weights
  kSquaredRelu,  // max(0, s)^2, over the number of keys that the query sees
  kPolynomial,   // a0 + a1 s + a2 s^2, over the sum of weights + norm_eps, or nothing
};

// B rows, T queries, S keys, H heads of queries and Hk of keys; widths d, up to 128, and V, any.
// Query t is key num_past + t of its row. bf16.
struct PairAttentionArgs {
  int batch = 0, num_queries = 0, num_keys = 0, num_past = 0;
  int num_heads = 0, num_kv_heads = 0;
  int head_dim = 0, head_dim_v = 0;
  float scale = 1;
  Weight weight = Weight::kSoftmax;
  float a0 = 0, a1 = 0, a2 = 0;  // of a polynomial
  bool normalise = true;         // a polynomial
  float norm_eps = 0;

  TensorView q, k, v, out;  // [B, T, H, d], [B, S, Hk, d], [B, S, Hk, V], [B, T, H, V]

  // Query t of row b sees keys [first, end), and [sinks, sinks + num_sinks) before end; all [B, T].
  const int32_t *first = nullptr, *end = nullptr, *sinks = nullptr;
  int num_sinks = 0;

  // [H, bias_stride], of which element bias_zero - distance belongs to a distance; null: none.
  const float* bias = nullptr;
  int64_t bias_stride = 0, bias_zero = 0;
  const float* bias_scale = nullptr;  // [B, T] of each query's; null: 1 each
  // Of what v counts by; the sum that divides is of all. Queries and keys are at their places.
  PairDropout dropout;

  // [B, T, H]: of a softmax ln of the sum of weights, of a normalised polynomial their sum and
  // norm_eps. Null in a forward: not wanted.
  float* normaliser = nullptr;

  // Whether outputs are divided by the sum of their weights, which then has a gradient.
  HL_EVERYWHERE bool divides() const {
    return weight == Weight::kSoftmax || (weight == Weight::kPolynomial && normalise);
  }
};

struct PairAttentionGradArgs {
  PairAttentionArgs forward;
  TensorView dout, dq, dk, dv;
  float* dbias = nullptr;  // [B, H, bias_stride], written whole; null: not wanted
  void* workspace =
      nullptr;  // WorkspaceBytes(), aligned to 16; contents undefined before and after
};

// Of a backward.
size_t WorkspaceBytes(const PairAttentionGradArgs& grads);
// Asynchronous on `stream`; Error for what the kernels do not take.
void Forward(const PairAttentionArgs& args, cudaStream_t stream);
void Backward(const PairAttentionGradArgs& grads, cudaStream_t stream);

}  // namespace halflife::kernels::pairs
