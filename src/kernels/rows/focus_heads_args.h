// The contract of what focus mixers do with the channels of a token's head before and behind their
// pool (kernels/focus_pool), between its binding, its CPU loops and its CUDA kernels.
//
// Before it, with k = x or x times, f a token's or a head's direction, ^ standardised or as it is
// (kernels/real_norm):
//
//   l = scale dot(f^, k^),   log_weight = l, or ln(elu(l) + 1),   payload = k^, v^, or k^ and v^
//
// Behind it, with G the pooled payload, its first channels those that are seen, its last those that
// pass:
//
//   out = sigmoid(scale dot(q^, seen)) pass
//
// Tokens' rows have the heads' channels one after the other. They lie `stride` apart, as columns of
// a matrix do, or are contiguous. T: float or Bf16; arithmetic is fp32. C++17, no LibTorch: CUDA
// sources include it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"
#include "kernels/rows/real_norm_args.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int64_t kFocusHeadDim = 128;  // at most, of a head

// Rows of tokens; null: absent.
template <typename T>
struct FocusRows {
  T* data = nullptr;  // [tokens, H n]
  int64_t stride = 0;
};

template <typename T>
struct FocusLeavesShape {
  FocusRows<const T> x, times, direction, value;
  const float* vector = nullptr;  // [H, n], the direction of a head, where `direction` is absent
  int64_t num_tokens = 0, num_heads = 0, dim = 0;
  bool pool_x = true;  // k^ is pooled, before v^ where there is a value
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
  FocusRows<T> dx, dtimes, ddirection, dvalue;  // of what is there
  float* dvector = nullptr;                     // [H, n]
  bool vector_added = false;                    // to what it holds
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

// d log_weight / d l.
HL_EVERYWHERE constexpr float FocusSlope(bool elu, float l) {
  return elu && l > 0 ? 1 / (1 + l) : 1;
}

namespace cpu {
// Tokens per partial sum of the vector's gradient: fixed, so that the sum does not depend on the
// number of threads.
constexpr int64_t kFocusTokensPerBlock = 128;

// Tokens [begin, end).
void FocusLeavesForward(const FocusLeavesShape<float>& shape,
                        const FocusLeavesResults<float>& results, int64_t begin, int64_t end);
void FocusLeavesForward(const FocusLeavesShape<Bf16>& shape,
                        const FocusLeavesResults<Bf16>& results, int64_t begin, int64_t end);
// dstandardised [H, n], of the vector as it was standardised, += these tokens'; null: no vector.
void FocusLeavesBackward(const FocusLeavesShape<float>& shape, const FocusLeavesGrads<float>& grads,
                         int64_t begin, int64_t end, float* dstandardised);
void FocusLeavesBackward(const FocusLeavesShape<Bf16>& shape, const FocusLeavesGrads<Bf16>& grads,
                         int64_t begin, int64_t end, float* dstandardised);
// dvector, of the sum over all tokens.
void FocusVectorBackward(const FocusLeavesShape<float>& shape, const FocusLeavesGrads<float>& grads,
                         const float* dstandardised);
void FocusVectorBackward(const FocusLeavesShape<Bf16>& shape, const FocusLeavesGrads<Bf16>& grads,
                         const float* dstandardised);
// out [tokens, H n].
void FocusGateForward(const FocusGateShape<float>& shape, float* out, int64_t begin, int64_t end);
void FocusGateForward(const FocusGateShape<Bf16>& shape, Bf16* out, int64_t begin, int64_t end);
void FocusGateBackward(const FocusGateShape<float>& shape, const FocusGateGrads<float>& grads,
                       int64_t begin, int64_t end);
void FocusGateBackward(const FocusGateShape<Bf16>& shape, const FocusGateGrads<Bf16>& grads,
                       int64_t begin, int64_t end);
}  // namespace cpu

namespace cuda {
// Partial sums of the vector's gradient: one a block of a head's tokens, at most so many.
constexpr int64_t kFocusMaxBlocks = 64;
inline int64_t FocusVectorPartials(int64_t num_tokens) {
  return std::min(kFocusMaxBlocks, num_tokens);
}

void FocusLeavesForward(const FocusLeavesShape<float>& shape,
                        const FocusLeavesResults<float>& results, cudaStream_t stream);
void FocusLeavesForward(const FocusLeavesShape<Bf16>& shape,
                        const FocusLeavesResults<Bf16>& results, cudaStream_t stream);
// `partials` holds FocusVectorPartials(num_tokens) H n floats where there is a vector.
void FocusLeavesBackward(const FocusLeavesShape<float>& shape, const FocusLeavesGrads<float>& grads,
                         float* partials, cudaStream_t stream);
void FocusLeavesBackward(const FocusLeavesShape<Bf16>& shape, const FocusLeavesGrads<Bf16>& grads,
                         float* partials, cudaStream_t stream);
void FocusGateForward(const FocusGateShape<float>& shape, float* out, cudaStream_t stream);
void FocusGateForward(const FocusGateShape<Bf16>& shape, Bf16* out, cudaStream_t stream);
void FocusGateBackward(const FocusGateShape<float>& shape, const FocusGateGrads<float>& grads,
                       cudaStream_t stream);
void FocusGateBackward(const FocusGateShape<Bf16>& shape, const FocusGateGrads<Bf16>& grads,
                       cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
