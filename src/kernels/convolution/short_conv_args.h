// Arguments of the short causal convolution, shared by its LibTorch side, CPU loops and CUDA
// kernels.
//
//   s_t = bias + sum over i <= reach_t of weight[W-1-i] x_{t-i},   y_t = silu(s_t), or s_t itself
//   ds_t = dout_t silu'(s_t), or dout_t,   dx_t = sum of weight[W-1-i] ds_{t+i},
//   dweight[W-1-i] = sum of ds_t x_{t-i}, both over i <= reach,   dbias = sum of ds_t
//
// A token's reach is the number of tokens back that it reads: at most W-1, none across a document's
// start, and tokens of the tail as far as these limits allow. T is float or Bf16; arithmetic is
// fp32. C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int64_t kConvMaxTaps = 8;
constexpr int kConvParts = 3;  // maximum convolutions of one launch, such as those of q, k and v

template <typename T>
struct ConvShape {
  const T* x = nullptr;     // [B, T, D]; tokens are x_stride apart
  const T* tail = nullptr;  // [B, W-1, D]; null: there is nothing before the slice
  // Tap j reads the token W-1-j back. [D, W] on a GPU, like the parameter; [W, D] on the CPU.
  const float* weight = nullptr;
  const float* bias = nullptr;         // [D]; null: none
  const int64_t* documents = nullptr;  // [B, T]; null: one per row
  // [B, T], only with `documents`. Only whether a document starts with the slice is read.
  const bool* starts = nullptr;
  const uint8_t* reach = nullptr;  // [B, T], for the CPU loops: computed by FillReach
  int64_t batch = 0, seq_len = 0, dim = 0;
  int64_t x_stride = 0;  // D if x is dense
  int64_t taps = 0;      // W, 1 to kConvMaxTaps
  bool silu = true;      // false: the output is the sum itself

  // Rows of D in the gradient of the parameters: the W rows of dweight, then dbias if there is a
  // bias.
  int64_t gradient_rows() const { return taps + (bias != nullptr ? 1 : 0); }
};

template <typename T>
struct ConvGrads {
  const T* dout = nullptr;  // [B, T, D]
  T* dx = nullptr;          // [B, T, D]; tokens are dx_stride apart
  int64_t dx_stride = 0;    // D if dx is dense
  T* dtail = nullptr;       // [B, W-1, D], or null
};

// The fp32 gradients of the parameters. `added`: add to their contents.
struct ConvWeightGrads {
  float* dweight = nullptr;  // [D, W]
  float* dbias = nullptr;    // [D], only if there is a bias
  bool weight_added = false, bias_added = false;
};

// Convolutions of the same tokens, which one launch computes. Several parts have the same batch,
// seq_len, taps, documents and starts, and no bias.
template <typename T>
struct ConvPart {
  ConvShape<T> shape;
  T* out = nullptr;  // [B, T, D]
};
template <typename T>
struct ConvParts {
  ConvPart<T> parts[kConvParts];
  int num_parts = 0;
};
template <typename T>
struct ConvGradPart {
  ConvShape<T> shape;
  ConvGrads<T> grads;
  ConvWeightGrads weights;
};
template <typename T>
struct ConvGradParts {
  ConvGradPart<T> parts[kConvParts];
  int num_parts = 0;
};

// The inputs of FillReach().
struct ConvReach {
  const int64_t* documents = nullptr;  // like those of ConvShape
  const bool* starts = nullptr;
  uint8_t* reach = nullptr;  // [B, T]
  int64_t batch = 0, seq_len = 0, taps = 0;
  bool has_tail = false;
};

namespace cpu {
// Tokens per partial sum of the weight's gradient. Fixed, so that the sum does not depend on the
// number of threads. It is at least kConvMaxTaps - 1, so that the first block of a row holds every
// token that reads the tail.
constexpr int64_t kConvTokensPerBlock = 64;
// Returns the number of blocks in a row; the last one may be shorter.
inline int64_t ConvBlocksPerRow(int64_t seq_len) {
  return (seq_len + kConvTokensPerBlock - 1) / kConvTokensPerBlock;
}

void FillReach(const ConvReach& args);
template <typename T>
void ConvForward(const ConvShape<T>& shape, int64_t block, T* out);
// Adds the block's gradients to dweight [gradient_rows(), D]. `scratch` holds kConvScratchRows D
// floats.
constexpr int64_t kConvScratchRows = kConvTokensPerBlock + 2 * kConvMaxTaps;
template <typename T>
void ConvBackward(const ConvShape<T>& shape, const ConvGrads<T>& grads, int64_t block,
                  float* dweight, float* scratch);
}  // namespace cpu

namespace cuda {
// Tokens that a thread processes in the backward. Each such run has one partial sum of the weights'
// gradients.
constexpr int64_t kConvGradRun = 32;
template <typename T>
int64_t ConvWorkspaceFloats(const ConvGradParts<T>& args) {
  int64_t floats = 0;
  for (int i = 0; i < args.num_parts; ++i) {
    const ConvShape<T>& shape = args.parts[i].shape;
    const int64_t runs = (shape.seq_len + kConvGradRun - 1) / kConvGradRun;
    floats += shape.batch * runs * shape.gradient_rows() * shape.dim;
  }
  return floats;
}

template <typename T>
void ConvForward(const ConvParts<T>& args, cudaStream_t stream);
// `workspace` holds ConvWorkspaceFloats() floats.
template <typename T>
void ConvBackward(const ConvGradParts<T>& args, float* workspace, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
