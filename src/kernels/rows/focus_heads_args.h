// Arguments of the operations of focus mixers on the channels of a token's head before and after
// their pool (kernels/focus_pool), shared by their LibTorch side, CPU loops and CUDA kernels.
//
// Before the pool, with k = x or x times, f the direction of a token or a head, and ^ denoting
// optional standardization (kernels/rows/layer_norm_args.h):
//
//   l = scale dot(f^, k^),   log_weight = l, or ln(elu(l) + 1),   payload = k^, v^, or k^ and v^
//
// After the pool, with G the pooled payload; its first channels (`seen`) enter the gate, its last
// (`pass`) are gated:
//
//   out = sigmoid(scale dot(q^, seen)) pass
//
// A token's row holds the channels of its heads one after the other. Rows are `stride` apart, like
// columns of a matrix, or contiguous. T is float or Bf16; arithmetic is fp32. C++17 without
// LibTorch, because CUDA sources include it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"
#include "kernels/rows/layer_norm_args.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int64_t kFocusHeadDim = 128;  // maximum channels of a head

// Rows of tokens. Null data: absent.
template <typename T>
struct FocusRows {
  T* data = nullptr;  // [tokens, H n]
  int64_t stride = 0;
};

template <typename T>
struct FocusLeavesShape {
  FocusRows<const T> x, times, direction, value;
  const float* vector = nullptr;  // [H, n], one direction per head; used if `direction` is absent
  int64_t num_tokens = 0, num_heads = 0, dim = 0;
  bool pool_x = true;  // true: k^ is pooled, before v^ if there is a value
  bool norm = false, norm_value = false, elu = false;
  float eps = 0, scale = 1;

  HL_EVERYWHERE constexpr int64_t before_value() const { return pool_x ? dim : 0; }
  HL_EVERYWHERE constexpr int64_t payload() const {
    return before_value() + (value.data != nullptr ? dim : 0);
  }
};
template <typename T>
struct FocusLeavesResults {
  float* log_weight = nullptr;  // [tokens, H]
  T* payload = nullptr;         // [tokens, H, n or 2 n]
};
template <typename T>
struct FocusLeavesGrads {
  const float* dlog_weight = nullptr;
  const T* dpayload = nullptr;
  FocusRows<T> dx, dtimes, ddirection, dvalue;  // null for absent inputs
  float* dvector = nullptr;                     // [H, n]
  bool vector_added = false;                    // true: add to the contents of dvector
};

template <typename T>
struct FocusGateShape {
  FocusRows<const T> query;
  const T* pooled = nullptr;  // [tokens, H, width]
  int64_t num_tokens = 0, num_heads = 0, dim = 0, width = 0;
  bool norm = false;
  float eps = 0, scale = 1;
};
template <typename T>
struct FocusGateGrads {
  const T* dout = nullptr;  // [tokens, H n]
  FocusRows<T> dquery;
  T* dpooled = nullptr;  // [tokens, H, width]
};

// Returns d log_weight / d l.
HL_EVERYWHERE constexpr float FocusSlope(bool elu, float l) {
  return elu && l > 0 ? 1 / (1 + l) : 1;
}

namespace cpu {
// Tokens per partial sum of the vector's gradient. Fixed, so that the sum does not depend on the
// number of threads.
constexpr int64_t kFocusTokensPerBlock = 128;

// Processes tokens [begin, end).
template <typename T>
void FocusLeavesForward(const FocusLeavesShape<T>& shape, const FocusLeavesResults<T>& results,
                        int64_t begin, int64_t end);
// Adds the gradient of the standardized vector to dstandardised [H, n]; null: there is no vector.
template <typename T>
void FocusLeavesBackward(const FocusLeavesShape<T>& shape, const FocusLeavesGrads<T>& grads,
                         int64_t begin, int64_t end, float* dstandardised);
// Computes dvector from dstandardised, summed over all tokens.
template <typename T>
void FocusVectorBackward(const FocusLeavesShape<T>& shape, const FocusLeavesGrads<T>& grads,
                         const float* dstandardised);
// `out` is [tokens, H n].
template <typename T>
void FocusGateForward(const FocusGateShape<T>& shape, T* out, int64_t begin, int64_t end);
template <typename T>
void FocusGateBackward(const FocusGateShape<T>& shape, const FocusGateGrads<T>& grads,
                       int64_t begin, int64_t end);
}  // namespace cpu

namespace cuda {
// The maximum number of partial sums of the vector's gradient: one per block of tokens of a head.
constexpr int64_t kFocusMaxBlocks = 64;
inline int64_t FocusVectorPartials(int64_t num_tokens) {
  return std::min(kFocusMaxBlocks, num_tokens);
}

template <typename T>
void FocusLeavesForward(const FocusLeavesShape<T>& shape, const FocusLeavesResults<T>& results,
                        cudaStream_t stream);
// `partials` holds FocusVectorPartials(num_tokens) H n floats if there is a vector.
template <typename T>
void FocusLeavesBackward(const FocusLeavesShape<T>& shape, const FocusLeavesGrads<T>& grads,
                         float* partials, cudaStream_t stream);
template <typename T>
void FocusGateForward(const FocusGateShape<T>& shape, T* out, cudaStream_t stream);
template <typename T>
void FocusGateBackward(const FocusGateShape<T>& shape, const FocusGateGrads<T>& grads,
                       cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
