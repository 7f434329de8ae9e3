// Arguments of the decay gate and of learned decays, shared by their LibTorch side, CPU loops and
// CUDA kernels. C++17 without LibTorch, because CUDA sources include it.
//
// The decay gate:
//
//   log_decay = max(scale ln sigmoid(x + bias), floor)
//   dx = dlog_decay scale sigmoid(-x - bias) above the floor, 0 at it; dbias = sum of dx over rows
//
// Rows are contiguous. T is float or Bf16, the type of x and dx only; arithmetic, bias and
// log_decay are fp32.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// The parameters of the gate.
struct DecayGateForm {
  const float* bias = nullptr;  // [dim]
  float scale = 1, floor = 0;   // a floor of -infinity has no effect
};

template <typename T>
struct DecayGateRows {
  const T* x = nullptr;        // [rows, dim]
  float* log_decay = nullptr;  // [rows, dim]
  DecayGateForm form;
  int64_t num_rows = 0, dim = 0;
};
template <typename T>
struct DecayGateGradRows {
  const T* x = nullptr;               // [rows, dim]
  const float* dlog_decay = nullptr;  // [rows, dim]
  T* dx = nullptr;                    // [rows, dim]
  DecayGateForm form;
  int64_t num_rows = 0, dim = 0;
};

// Decays that depend only on parameters, by `form`:
//
//   -e^p                                  dp = dlog_decay log_decay
//   min(-2^(-H/h) - scale p, most)        dp = -scale dlog_decay, 0 where the bound holds
//
// p is a parameter [H, K], with heads counted from 1. fp32.
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

namespace cpu {
// Processes rows [begin, end).
template <typename T>
void DecayGateForward(const DecayGateRows<T>& rows, int64_t begin, int64_t end);
// Computes the gradients of rows [begin, end) and adds theirs to dbias [dim].
template <typename T>
void DecayGateBackward(const DecayGateGradRows<T>& rows, int64_t begin, int64_t end, float* dbias);

void LearnedDecayForward(const LearnedDecayArgs& args);
void LearnedDecayBackward(const LearnedDecayGradArgs& args);
}  // namespace cpu

namespace cuda {
template <typename T>
void DecayGateForward(const DecayGateRows<T>& rows, cudaStream_t stream);
// Overwrites dbias [dim]. `partials` holds NumRowPartials(num_rows) dim floats.
template <typename T>
void DecayGateBackward(const DecayGateGradRows<T>& rows, float* dbias, float* partials,
                       cudaStream_t stream);

void LearnedDecayForward(const LearnedDecayArgs& args, cudaStream_t stream);
void LearnedDecayBackward(const LearnedDecayGradArgs& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
