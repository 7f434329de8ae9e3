// What the kernels of softmax attention read and write. C++17, no LibTorch: CUDA sources include
// it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/common/dropout_draws.h"
#include "kernels/common/tensor_view.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// Tokens of a tile, of queries and of keys alike.
constexpr int kAttentionTile = 64;

// B rows, T queries, S keys, H heads of queries and Hk of keys; widths d and V. Query t is key
// num_past + t of its row, and "distance" is the query's place minus the key's.
struct SoftmaxAttentionArgs {
  int batch = 0, num_queries = 0, num_keys = 0, num_past = 0;
  int num_heads = 0, num_kv_heads = 0;
  int head_dim = 0, head_dim_v = 0;
  double scale = 1;  // of the products of q and k
  // In place of the softmax a score counts by its square where it is above 0, over the number of
  // keys that its query sees.
  bool squared_relu = false;

  TensorView q;    // [B, T, H, d]
  TensorView k;    // [B, S, Hk, d]
  TensorView v;    // [B, S, Hk, V]
  TensorView out;  // [B, T, H, V]
  // Of pairs at a distance of far_from or more, in place of q and, with own_far_keys, of k; 0:
  // there are none.
  TensorView far_q, far_k;
  int far_from = 0;
  bool own_far_keys = false;

  // Query t of row b sees keys [first, end), and [sinks, sinks + num_sinks); all [B, T].
  const int32_t* first = nullptr;
  const int32_t* end = nullptr;
  const int32_t* sinks = nullptr;
  int num_sinks = 0;

  // Added to the scores, in the compute type: [H, bias_stride], of which element
  // bias_zero - distance belongs to a distance; a tile of elements that no pair reads lies at both
  // ends. Null: none.
  const void* bias = nullptr;
  int64_t bias_stride = 0, bias_zero = 0;
  const void* bias_scale = nullptr;  // [B, T] of each query's, in the compute type; null: 1 each
  // The product of channel c decays by e^(decay_rates[c] distance), <= 0 each: [d]. Null: none.
  const double* decay_rates = nullptr;
  // Of the weights, whose sums are of all; query t is at place num_past + t, keys at their own.
  PairDropout dropout;

  // ln of the sum of e^score of each query, [B, T, H], in the compute type (fp32; fp64 beside
  // fp64); -inf where it sees no key, and no number that means something where squared_relu is.
  // Null in a forward: not wanted.
  void* log_sum = nullptr;

  bool has_far() const { return far_from > 0; }
  // Keys that query t of row b sees; `query` is b T + t.
  int NumSeen(int64_t query) const {
    const int behind =
        std::max(0, std::min(sinks[query] + num_sinks, first[query]) - std::max(sinks[query], 0));
    return std::max(0, end[query] - first[query]) + behind;
  }
};

struct SoftmaxAttentionGradArgs {
  SoftmaxAttentionArgs forward;
  TensorView dout;            // as out
  TensorView dq, dk, dv;      // as q, k, v
  TensorView dfar_q, dfar_k;  // as far_q and far_k, where those are there
  void* dbias = nullptr;      // [B, H, bias_stride], zero before; null: not wanted
  // On CUDA: WorkspaceBytes(), aligned to 16; contents undefined before and after.
  void* workspace = nullptr;
};

namespace cpu {

void Forward(const SoftmaxAttentionArgs& args);
void Backward(const SoftmaxAttentionGradArgs& args);

}  // namespace cpu

// Asynchronous on `stream`. What the devices' kernels take: bf16, heads of up to 128 channels and
// any V, no far queries, no decay. Weights and dS are rounded to bf16 as operands of matrix units;
// sums are fp32, and of one order whatever runs beside. A NaN or an infinity in v, in dout or, in a
// backward, in q and k is heard by all tokens whose tile of 64 meets its tile, whatever they see.
namespace cuda {

// Why these kernels do not take a call on a device whose blocks have so much shared memory; empty:
// they do. Host code, in every build.
std::string WhyNot(const SoftmaxAttentionArgs& args, int64_t shared_memory_bytes);
size_t WorkspaceBytes(const SoftmaxAttentionGradArgs& grads);

void Forward(const SoftmaxAttentionArgs& args, cudaStream_t stream);
// Error without a workspace.
void Backward(const SoftmaxAttentionGradArgs& grads, cudaStream_t stream);

}  // namespace cuda
}  // namespace halflife::kernels
