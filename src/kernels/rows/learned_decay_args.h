// Arguments of decays that depend only on parameters, shared by their LibTorch side, CPU loop and
// CUDA kernels. By `form`:
//
//   -e^p                                  dp = dlog_decay log_decay
//   min(-2^(-H/h) - scale p, most)        dp = -scale dlog_decay, 0 where the bound holds
//
// p is a parameter [H, K], with heads counted from 1. fp32. C++17 without LibTorch, because CUDA
// sources include it.
#pragma once

#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

enum class LearnedDecayForm : uint8_t { kNegativeExp, kOffHeads };

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

}  // namespace halflife::kernels
