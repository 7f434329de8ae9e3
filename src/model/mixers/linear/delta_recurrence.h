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

#include <optional>

#include "model/mixers/linear/recurrence.h"
#include "model/mixers/linear/softplus_decay.h"

namespace halflife::model {

struct DeltaForm {
  bool use_beta = true;  // beta_t = beta_scale sigmoid(W x_t) per value head; false: 1
  // 2: beta is in (0, 2), and transitions may have negative eigenvalues (Grazzi et al., 2025).
  double beta_scale = 1;
  // Divides q and k, which must not be negative, by the sum of their channels, instead of by their
  // Euclidean norm. Then |k| <= 1.
  bool norm_by_sum = false;
  std::optional<SoftplusDecayForm> decay = {};  // of HV heads; absent: no decay
  // Steps per token, each with a key, a value and a beta (householder_steps.h). k and v then have
  // the heads of all steps.
  int64_t num_steps = 1;
};

RecurrenceFactory MakeDeltaRecurrence(DeltaForm form);

}  // namespace halflife::model
