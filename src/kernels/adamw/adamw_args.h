// AdamW (Loshchilov & Hutter, "Decoupled weight decay regularization") over flat fp32 arrays in one
// pass:
//   m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g^2,
//   w -= lr wd w + lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// with g = grads * grad_factor (clipping and averaging), and the rounded copy of w that the forward
// computes with. 28 bytes of memory traffic a weight, 30 with the copy.
//
//   const AdamWSegment segments[] = {{.begin = 0, .end = n, .weight_decay = 0.1f}};
//   cpu::AdamW({.main = w, .grads = g, .m = m, .v = v, .segments = segments, .num_segments = 1,
//               .factors = MakeAdamWFactors(config, lr, clip, num_updates)});
//
// C++17: CUDA sources include it.
#pragma once

#include <cmath>
#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

#ifdef __CUDACC__
#define HL_ADAMW_INLINE __host__ __device__ __forceinline__
#else
#define HL_ADAMW_INLINE __attribute__((always_inline)) inline
#endif

namespace halflife::kernels {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

// Elements [begin, end) of the arrays, which share one treatment. Elements outside every segment do
// not change.
struct AdamWSegment {
  int64_t begin, end;
  float weight_decay;
  int32_t has_copy;  // not 0: `copy` holds these elements
  // Offsets for arrays that hold only a part: element i is at index i + shift. m and v share one
  // offset.
  int64_t main_shift = 0, grads_shift = 0, moments_shift = 0;
  float lr_scale = 1;  // factor of the learning rate
};

// The factors that all elements share, computed in fp64 from the step.
struct AdamWFactors {
  float grad_factor, beta1, one_minus_beta1, beta2, one_minus_beta2;
  float lr;           // learning rate for the weight decay
  float step_size;    // lr / (1 - b1^t)
  float denom_scale;  // 1 / sqrt(1 - b2^t)
  float eps;
};
// `num_updates` = t counts this update: >= 1.
AdamWFactors MakeAdamWFactors(const AdamWConfig& config, double lr, double grad_factor,
                              uint64_t num_updates);

struct AdamWArgs {
  float* main = nullptr;         // [n] w
  const float* grads = nullptr;  // [n]
  float* m = nullptr;            // [n]
  float* v = nullptr;            // [n]
  uint16_t* copy = nullptr;      // bf16, w rounded to nearest even, by i itself; null: none
  const AdamWSegment* segments = nullptr;  // in the arrays' memory
  int num_segments = 0;
  int64_t max_segment = 0;  // elements of the longest; sizes the grid
  AdamWFactors factors = {};
};

namespace cpu {
void AdamW(const AdamWArgs& args);
}
namespace cuda {
void AdamW(const AdamWArgs& args, cudaStream_t stream);
}

// Returns the factors of a segment's elements.
HL_ADAMW_INLINE AdamWFactors FactorsOf(const AdamWFactors& factors, const AdamWSegment& segment) {
  AdamWFactors own = factors;
  own.lr *= segment.lr_scale;
  own.step_size *= segment.lr_scale;
  return own;
}

// Updates one element. The CPU and the device compile the same source.
HL_ADAMW_INLINE float AdamWElement(const AdamWFactors& f, float weight_decay, float grad, float w,
                                   float& m, float& v) {
  const float g = grad * f.grad_factor;
  m = f.beta1 * m + f.one_minus_beta1 * g;
  v = f.beta2 * v + f.one_minus_beta2 * (g * g);
  const float decayed = w - f.lr * weight_decay * w;
  return decayed - f.step_size * m / (sqrtf(v) * f.denom_scale + f.eps);
}

}  // namespace halflife::kernels
