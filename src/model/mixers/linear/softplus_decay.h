// The decay per token of Gated DeltaNet (Yang et al., 2025) and Kimi Delta Attention (Kimi Team,
// 2025), computed from x with the gate of Mamba (Gu and Dao, 2024):
//
//   ln alpha_t = -exp(A_log) softplus(W x_t + dt_bias)
//   ln alpha_t = lower_bound sigmoid(exp(A_log) (W x_t + dt_bias))        with a lower bound
//
// A_log is one value per head. A_log and dt_bias are fp32 parameters without weight decay.
#pragma once

#include <cstdint>
#include <memory>

#include "model/mixers/linear/log_decay.h"
#include "model/part_context.h"

namespace halflife::model {

struct SoftplusDecayForm {
  int64_t num_heads = 0;
  // Channels of a head that have their own decay, [B, T, H, K]; 0: one decay per head, [B, T, H].
  int64_t num_channels = 0;
  // W is the product of two matrices f_proj.1 and f_proj.0, of this inner width; 0: W is a_proj.
  int64_t rank = 0;
  double lower_bound = 0;  // < 0: the second formula, whose values are above it
  // A = exp(A_log) is initially uniform in [initial_min, initial_max]; initial_min > 0.
  double initial_min = 1, initial_max = 16;
};

std::unique_ptr<LogDecay> MakeSoftplusDecay(const SoftplusDecayForm& form,
                                            const PartContext& context);

}  // namespace halflife::model
