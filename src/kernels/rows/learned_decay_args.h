// Arguments of decays that depend only on parameters, shared by their LibTorch side, CPU loop and
// CUDA kernels. By `form`:
//
//   -e^p                                  dp = dlog_decay log_decay
//   min(-2^(-H/h) - scale p, most)        dp = -scale dlog_decay, 0 where the bound holds
//
// p is a parameter [H, K], with heads counted from 1. fp32. C++17 without LibTorch, because CUDA
// sources include it.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

enum class LearnedDecayForm : uint8_t { kNegativeExp, kHeadOffset };

struct LearnedDecayArgs {
  const float* p = nullptr;    // [heads, width]
  float* log_decay = nullptr;  // [heads, width]
  int64_t heads = 1, width = 0;
  LearnedDecayForm form = LearnedDecayForm::kNegativeExp;
  float scale = 1, most = 0;  // a `most` of infinity has no effect
};
struct LearnedDecayGradArgs {
  LearnedDecayArgs forward;           // log_decay as computed by the forward
  const float* dlog_decay = nullptr;  // [heads, width]
  float* dp = nullptr;                // [heads, width]
  bool added = false;                 // true: add to the contents of dp
};

namespace cpu {
void LearnedDecayForward(const LearnedDecayArgs& args);
void LearnedDecayBackward(const LearnedDecayGradArgs& args);
}  // namespace cpu
namespace cuda {
void LearnedDecayForward(const LearnedDecayArgs& args, cudaStream_t stream);
void LearnedDecayBackward(const LearnedDecayGradArgs& args, cudaStream_t stream);
}  // namespace cuda

// One element of a decay that is learned as an offset from its head's base, for CPU and GPU.
struct OffHead {
  // `head` counts from 0. The base, -2^(-H/h), is rounded to fp32 once.
  HL_EVERYWHERE OffHead(int64_t head, const LearnedDecayArgs& args)
      : base(static_cast<float>(
            -exp2(-static_cast<double>(args.heads) / static_cast<double>(head + 1)))),
        scale(args.scale),
        most(args.most) {}
  HL_EVERYWHERE float Of(float p) const {
    const float x = base - scale * p;
    return x > most ? most : x;  // NaN stays NaN
  }
  HL_EVERYWHERE float Slope(float p) const { return base - scale * p > most ? 0.0f : -scale; }

  float base, scale, most;
};

}  // namespace halflife::kernels
