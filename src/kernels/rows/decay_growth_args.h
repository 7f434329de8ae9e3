// The contract of what keeps constant decays that may lie above 1 from growing (decay_attention/
// growth.h), of sequences without a state before them and keys without scales, between its binding,
// its CPU loops and its CUDA kernel. With mu_h = max(0, the largest log_decay of head h) and n
// tokens from the run's begin to a token,
//
//   lowered = log_decay - mu,  key_factor = exp(-n mu_h),  final_log_scale = n mu_h at the end
//
// Head h of H reads log_decay's head h Hd / H. n mu and its exponential are fp64. C++17, no
// LibTorch: the CUDA source includes it.
#pragma once

#include <cstdint>

#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int64_t kGrowthMaxHeads = 512;  // their mu lie in a block's shared memory

struct DecayGrowthArgs {
  const float* log_decay = nullptr;   // [Hd, width]
  const int64_t* begin = nullptr;     // [B, T]: the first token of each token's run, within its row
  const int64_t* last = nullptr;      // [sequences]: b T + t; of one without tokens B T or more
  float* lowered = nullptr;           // [Hd, width]
  float* key_factor = nullptr;        // [B, T, H]
  double* final_log_scale = nullptr;  // [sequences, H]
  int64_t batch = 0, seq_len = 0, heads = 0, decay_heads = 0, width = 0, sequences = 0;

  HL_EVERYWHERE int64_t num_tokens() const { return batch * seq_len; }
};

namespace cpu {
// Scratch: heads doubles and seq_len heads floats.
void DecayGrowth(const DecayGrowthArgs& args, double* growth, float* factors);
}  // namespace cpu
namespace cuda {
void DecayGrowth(const DecayGrowthArgs& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
