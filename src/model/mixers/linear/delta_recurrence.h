// The recurrence of the delta rule (Schlag et al., 2021), with an optional decay (Yang et al.,
// 2025):
//
//   S~ = decay_t S_{t-1},   u_t = beta_t (v_t - k_t S~),   S_t = S~ + k_t^T u_t,
//   o_t = q_t S_t / sqrt(K)
//
// Before a value is written, the value that the state holds for its key is read and removed. The
// recurrence normalises q and k of each head, so that |k_t| = 1, and computes beta from x.
//
// Shapes: B batch, T seq_len, H heads of q and k, HV heads of v, of the decay and of the state,
// K and V head dims.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "model/mixers/linear/log_decay.h"
#include "model/mixers/linear/recurrence.h"

namespace halflife::model {

struct DeltaForm {
  bool use_beta = true;  // beta_t = beta_scale sigmoid(W x_t) per value head; false: beta_scale
  // 2: beta is in (0, 2), and transitions may have negative eigenvalues (Grazzi et al., 2025).
  double beta_scale = 1;
  // Divides q and k by the sum of the absolute values of their channels instead of by their
  // Euclidean norm. Then |k| <= 1.
  bool norm_by_sum = false;
  std::optional<SoftplusDecayForm> decay = {};  // of HV heads; absent: no decay
  // Steps per token, each with a key, a value and a beta (HouseholderRow). k and v then have
  // the heads of all steps.
  int64_t num_steps = 1;
};

RecurrenceFactory MakeDeltaRecurrence(DeltaForm form);

// Several steps of the delta rule per token (Siems et al., 2025): token t applies n pairs of key
// and value one after the other,
//
//   S <- decay_t S,   then for i = 1 ... n:  S <- S + beta_i k_i^T (v_i - k_i S),   o_t = q_t S
//
// It is the delta rule on a row of n T tokens, of which only the first of each token decays the
// state and only the last one is read.
//
// Shapes: B batch, T seq_len, n steps per token, H heads of q and k, HV heads of v.
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
// Returns the last step of each token: [B, n T, ...] -> [B, T, ...].
at::Tensor AtLastSteps(const at::Tensor& steps, int64_t num_steps);

}  // namespace halflife::model
