// Arguments of the kernels of softmax attention. C++17 without LibTorch, because CUDA sources
// include it.
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

// Tokens of a tile, for queries and for keys.
constexpr int kAttentionTile = 64;

// B rows, T queries, S keys, H heads of queries and Hk of keys; widths d and V. Query t is key
// num_past + t of its row. "Distance" is the query's index minus the key's.
struct SoftmaxAttentionArgs {
  int batch = 0, num_queries = 0, num_keys = 0, num_past = 0;
  int num_heads = 0, num_kv_heads = 0;
  int head_dim = 0, head_dim_v = 0;
  double scale = 1;  // factor on the products of q and k
  // Instead of the softmax, the weight of a score is max(0, score)^2 divided by the number of keys
  // that its query sees.
  bool squared_relu = false;

  TensorView q;    // [B, T, H, d]
  TensorView k;    // [B, S, Hk, d]
  TensorView v;    // [B, S, Hk, V]
  TensorView out;  // [B, T, H, V]
  // Used for pairs at a distance of far_from or more, in place of q and, if own_far_keys, of k.
  // far_from = 0: there are no far pairs.
  TensorView far_q, far_k;
  int far_from = 0;
  bool own_far_keys = false;

  // Query t of row b sees keys [first, end), and [sinks, sinks + num_sinks) before `end`. All are
  // [B, T].
  const int32_t* first = nullptr;
  const int32_t* end = nullptr;
  const int32_t* sinks = nullptr;
  int num_sinks = 0;

  // [H, bias_stride] in the compute type, added to the scores: element bias_zero - distance is the
  // bias of a distance. Both ends are padded by a tile of elements that no pair uses. Null: no
  // bias.
  const void* bias = nullptr;
  int64_t bias_stride = 0, bias_zero = 0;
  // [B, T] in the compute type, a factor on each query's bias; null: 1.
  const void* bias_scale = nullptr;
  // [d]: the product of channel c decays by e^(decay_rates[c] distance), with rates <= 0. Null: no
  // decay.
  const double* decay_rates = nullptr;
  // Dropout of the weights; their sums include dropped ones. Query t has index num_past + t, and
  // keys their own index.
  PairDropout dropout;

  // [B, T, H] in the compute type (fp32; fp64 for fp64): the logarithm of the sum of e^score of
  // each query; -inf if it sees no key. Undefined for squared_relu. Null in a forward: not
  // computed.
  void* log_sum = nullptr;

  bool has_far() const { return far_from > 0; }
  // Returns the number of keys that query t of row b sees. `query` is b T + t.
  int NumSeen(int64_t query) const {
    const int behind =
        std::max(0, std::min(sinks[query] + num_sinks, first[query]) - std::max(sinks[query], 0));
    return std::max(0, end[query] - first[query]) + behind;
  }
};

struct SoftmaxAttentionGradArgs {
  SoftmaxAttentionArgs forward;
  TensorView dout;            // like out
  TensorView dq, dk, dv;      // like q, k, v
  TensorView dfar_q, dfar_k;  // like far_q and far_k, if those are given
  void* dbias = nullptr;      // [B, H, bias_stride], zero before the call; null: not computed
  // On CUDA: WorkspaceBytes(), aligned to 16. Its contents are undefined before and after.
  void* workspace = nullptr;
};

namespace cpu {

void Forward(const SoftmaxAttentionArgs& args);
void Backward(const SoftmaxAttentionGradArgs& args);

}  // namespace cpu

// Asynchronous on `stream`. The CUDA kernels support bf16, heads of up to 128 channels and any V,
// without far queries and decay. Weights and dS are rounded to bf16 as operands of matrix units;
// sums are fp32 and have one order. A NaN or an infinity spreads to all tokens of every tile of 64
// that is paired with its tile, also to tokens that do not see it. In a forward this holds for v,
// in a backward for q, k, v and dout.
namespace cuda {

// Returns the reason why these kernels do not support a call on a device with this much shared
// memory per block, or "" if they do. Host code, in every build.
std::string WhyNot(const SoftmaxAttentionArgs& args, int64_t shared_memory_bytes);
size_t WorkspaceBytes(const SoftmaxAttentionGradArgs& grads);

void Forward(const SoftmaxAttentionArgs& args, cudaStream_t stream);
// Throws an error without a workspace.
void Backward(const SoftmaxAttentionGradArgs& grads, cudaStream_t stream);

}  // namespace cuda
}  // namespace halflife::kernels
