// Arguments of a convolution filter computed by layers of sines, shared by its LibTorch side, CPU
// loops and CUDA kernels.
//
//   p_i = W_i a_{i-1} + b_i,   a_i = sin(f p_i),   a_0 = x, a frequency f for each channel of all
//   out = W_out a_L
//   g_i = da_i cos(f p_i),   dp_i = f g_i,   da_{i-1} = W_i^T dp_i,   df = sum of g_i p_i
//   dW_i = sum of dp_i a_{i-1}^T,   db_i = sum of dp_i, over tokens; df over layers, too
//
// The backward starts from da_L, which a matrix product outside these kernels computes, as it does
// dW_out. The backward recomputes the forward instead of storing it. fp32. C++17 without LibTorch,
// because CUDA sources include it.
#pragma once

#include <cstdint>

#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int kSineMaxLayers = 4;
// Tokens of a block, which adds them up in its partial sum of the weights' gradients. Fixed, so
// that sums do not depend on the number of threads.
constexpr int kSineTokens = 16;

struct SineFilterArgs {
  const float* x = nullptr;                   // [T, inputs]
  const float* weights[kSineMaxLayers] = {};  // [width, inputs], then [width, width]
  const float* biases[kSineMaxLayers] = {};   // [width]
  const float* frequency = nullptr;           // [width]
  const float* output = nullptr;              // [channels, width]
  int num_layers = 0;                         // 1 to kSineMaxLayers
  int num_tokens = 0, inputs = 0, width = 0, channels = 0;

  HL_EVERYWHERE constexpr int inputs_of(int layer) const { return layer == 0 ? inputs : width; }
  // Returns the column at which a layer's weight begins in the concatenated gradients of all
  // parameters: weight and bias of one layer after another, then the frequency.
  HL_EVERYWHERE constexpr int64_t column_of(int layer) const {
    const int64_t inner = int64_t{1} * width * (width + 1);
    return layer == 0 ? 0 : int64_t{1} * width * (inputs + 1) + (layer - 1) * inner;
  }
  HL_EVERYWHERE constexpr int64_t frequency_column() const { return column_of(num_layers); }
  int64_t num_columns() const { return frequency_column() + width; }
};

struct SineFilterOutputs {
  float* hidden = nullptr;  // [T, width]: a_L
  float* out = nullptr;     // [T, channels]
};

// Gradient of the inputs, of which only the first num_tokens rows were read; it is 0 for the
// others.
struct SineInputGradient {
  float* dx = nullptr;  // [num_rows, inputs]
  int num_rows = 0;
  bool added = false;  // true: add to the contents of dx
};
// Gradients of the parameters, fp32. `added`: add to their contents.
struct SineWeightGradients {
  struct Place {
    float* sum = nullptr;
    bool added = false;
  };
  Place weights[kSineMaxLayers], biases[kSineMaxLayers], frequency;
};

constexpr int SineBlocks(int num_tokens) { return (num_tokens + kSineTokens - 1) / kSineTokens; }

namespace cpu {
int64_t SineScratchFloats(const SineFilterArgs& args);
// Processes a block of kSineTokens tokens.
void SineFilterForward(const SineFilterArgs& args, const SineFilterOutputs& outputs, int block,
                       float* scratch);
// dhidden is da_L [T, width]. Sets sums [num_columns] to the contribution of the block's tokens.
void SineFilterBackward(const SineFilterArgs& args, const float* dhidden,
                        const SineInputGradient& input, int block, float* sums, float* scratch);
}  // namespace cpu

namespace cuda {
// Returns true if a block's shared memory holds a layer's weight and the block's tokens.
bool SineFilterFit(const SineFilterArgs& args, int64_t shared_memory_bytes);
void SineFilterForward(const SineFilterArgs& args, const SineFilterOutputs& outputs,
                       cudaStream_t stream);
// `partials` holds SineBlocks(num_tokens) times num_columns floats.
void SineFilterBackward(const SineFilterArgs& args, const float* dhidden,
                        const SineInputGradient& input, const SineWeightGradients& weights,
                        float* partials, cudaStream_t stream);
}  // namespace cuda

// Sine and cosine that vectorize on the CPU and need no stack frame on a device, where the built-in
// ones have a slow path for large arguments. Accurate to 2 ulp, or 2^-24 near a zero: quarter turns
// are subtracted in fp64, and the rest uses the minimax polynomials of Cephes' sinf and cosf.
// Beyond 1e7, where adjacent fp32 numbers are a radian apart, the results are those of 0.
// Non-finite arguments give NaN.
struct SinCos {
  float sin, cos;
};

HL_EVERYWHERE constexpr SinCos SinCosOf(float x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 x 2^52: adding it rounds to an integer
  const bool near = x > -1e7f && x < 1e7f;
  const double turned = near ? static_cast<double>(x) : 0.0;
  const double quarters = (turned * 0.63661977236758134308 + kRound) - kRound;
  const auto rest = static_cast<float>(turned - quarters * 1.57079632679489661923);
  const int quadrant = static_cast<int>(quarters) & 3;
  const float r = near ? rest : x - x, z = r * r;
  const float sine =
      r + r * z * ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f);
  const float cosine =
      1.0f - 0.5f * z +
      z * z * ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f);
  const bool swapped = (quadrant & 1) != 0;
  const float s = swapped ? cosine : sine, c = swapped ? sine : cosine;
  return {(quadrant & 2) != 0 ? -s : s, quadrant == 1 || quadrant == 2 ? -c : c};
}

}  // namespace halflife::kernels
