// The contract of decays that follow from parameters alone between their binding, their CPU loop
// and their CUDA kernels. By `form`:
//
//   -e^p                                  dp = dlog_decay log_decay
//   min(-2^(-H/h) - scale p, most)        dp = -scale dlog_decay, 0 where the bound holds
//
// of a parameter p [H, K], heads counted from 1. fp32. C++17, no LibTorch: CUDA sources include it.
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
  float scale = 1, most = 0;  // most: infinity bounds nothing
};
struct LearnedDecayGradArgs {
  LearnedDecayArgs forward;           // log_decay as the forward left it
  const float* dlog_decay = nullptr;  // [heads, width]
  float* dp = nullptr;                // [heads, width]
  bool added = false;                 // to what dp holds
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
