// Arguments of the operation that lowers constant decays, which may be above 1, to at most 1
// (ops/decay_attention/decay_attention_growth.cc), for sequences without an initial state and keys
// without scales. Shared by its LibTorch side, CPU loops and CUDA kernel. With mu_h = max(0, the
// largest log_decay of head h) and n tokens from the run's begin up to a token,
//
//   lowered = log_decay - mu,  key_factor = exp(-n mu_h),  final_log_scale = n mu_h at the end
//
// Head h of H reads log_decay's head h Hd / H. n mu and its exponential are computed in fp64. C++17
// without LibTorch, because the CUDA source includes it.
#pragma once

#include <cstdint>

#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int64_t kGrowthMaxHeads = 512;  // maximum: a block keeps their mu in shared memory

struct DecayGrowthArgs {
  const float* log_decay = nullptr;  // [Hd, width]
  const int64_t* begin = nullptr;    // [B, T]: the first token of each token's run, within its row
  // [sequences]: b T + t of the last token; B T or more for a sequence without tokens
  const int64_t* last = nullptr;
  float* lowered = nullptr;           // [Hd, width]
  float* key_factor = nullptr;        // [B, T, H]
  double* final_log_scale = nullptr;  // [sequences, H]
  int64_t batch = 0, seq_len = 0, heads = 0, decay_heads = 0, width = 0, sequences = 0;

  HL_EVERYWHERE int64_t num_tokens() const { return batch * seq_len; }
};

namespace cpu {
// Scratch memory: `heads` doubles and seq_len heads floats.
void DecayGrowth(const DecayGrowthArgs& args, double* growth, float* factors);
}  // namespace cpu
namespace cuda {
void DecayGrowth(const DecayGrowthArgs& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
