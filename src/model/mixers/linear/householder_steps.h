// Several steps of the delta rule per token (Siems et al., 2025): token t applies n pairs of key
// and value one after the other,
//
//   S <- decay_t S,   then for i = 1 ... n:  S <- S + beta_i k_i^T (v_i - k_i S),   o_t = q_t S
//
// It is the delta rule on a row of n T tokens, of which only the first of each token decays the
// state and only the last one is read.
//
// Shapes: B batch, T seq_len, n steps per token, H heads of q and k, HV heads of v.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::model {

struct HouseholderRow {
  at::Tensor q;          // tokens: [B, T, H, K], steps: [B, n T, H, K]
  at::Tensor k;          // tokens: [B, T, n H, K] with the heads of step 1 first
  at::Tensor v;          // tokens: [B, T, n HV, V]
  at::Tensor log_decay;  // tokens: [B, T, HV]; undefined: no decay
  at::Tensor beta;       // tokens: [B, T, n HV]
};
// Converts a row of tokens to a row of steps. Differentiable. The decay of a token at which a
// document starts (`starts` [B, T] bool, or undefined) becomes -inf, which resets the state: a
// table of chunks counts tokens.
HouseholderRow ToSteps(const HouseholderRow& tokens, int64_t num_steps, const at::Tensor& starts);
// The last step of each token: [B, n T, ...] -> [B, T, ...].
at::Tensor AtLastSteps(const at::Tensor& steps, int64_t num_steps);

}  // namespace halflife::model
