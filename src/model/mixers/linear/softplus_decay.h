// The decay per token of Gated DeltaNet (Yang et al., 2025) and Kimi Delta Attention (Kimi Team,
// 2025), computed from x with the gate of Mamba (Gu and Dao, 2024):
//
//   ln alpha_t = -exp(A_log) softplus(W x_t + dt_bias)
//   ln alpha_t = lower_bound sigmoid(exp(A_log) (W x_t + dt_bias))        with a lower bound
//
// A_log is one value per head. A_log and dt_bias are fp32 parameters without weight decay. The
// formula itself is in ops/rows/delta_gates.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/part_context.h"
#include "ops/linear/linear.h"
#include "ops/rows/delta_gates.h"

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

// The parameters of the decay, and its logits.
class SoftplusDecay {
 public:
  SoftplusDecay(const SoftplusDecayForm& form, const PartContext& context);

  // The matrices whose products with x it reads.
  std::vector<at::Tensor> Weights() const { return {*in_}; }
  // Computes the log decay, [B, T, H] or [B, T, H, K], from the products of Weights(), and in the
  // same pass beta = beta_scale sigmoid(b). b is [B, T, *], or undefined: no beta.
  ops::DeltaGatesOutput operator()(std::span<const ops::LinearPart> products,
                                   const ops::LinearPart& b, double beta_scale) const;
  bool per_channel() const { return form_.num_channels > 0; }

  // The costs of the decay, per token.
  int64_t num_matrix_elements() const;
  int64_t num_activations() const { return form_.rank + width_; }  // the products
  int64_t num_fp32_activations() const { return width_; }          // the log decay

 private:
  SoftplusDecayForm form_;
  int64_t width_, model_dim_;
  Parameter in_, out_, log_a_, bias_;
};

}  // namespace halflife::model
