// The reference implementation for tests and benchmarks: the recurrence token by token in fp64, as
// plain loops over plain memory, with forward and (by the adjoint recurrence) every gradient. It is
// deliberately simple and slow.
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::kernels {

struct DecayReferenceProblem {
  int64_t batch = 1, seq_len = 0, num_heads = 1, head_dim_k = 1, head_dim_v = 1;
  double scale = 1;
  std::vector<double> q, k;           // [B, T, H, K]
  std::vector<double> v;              // [B, T, H, V]
  std::vector<double> log_decay;      // [B, T, H, K] (expand constant and per-head decays first)
  std::vector<double> key_scale;      // [B, T, H] or empty (all 1)
  std::vector<uint8_t> starts;        // [B, T] or empty
  std::vector<double> initial_state;  // [B, H, K, V] or empty
  std::vector<double> dout;           // [B, T, H, V] or empty (forward only)
  std::vector<double> dfinal_state;   // [B, H, K, V] or empty
  // out = n / (d + norm_eps): d is read from z in the same way as n from S; z sums keys without
  // values.
  bool normalised = false;
  double norm_eps = 1e-30;
  std::vector<double> initial_norm, dfinal_norm;  // [B, H, K] or empty
};
struct DecayReferenceResult {
  std::vector<double> out, final_state, final_norm;
  // Empty if the problem is forward only. The norm is empty unless normalised.
  std::vector<double> dq, dk, dv, dlog_decay, dkey_scale, dinitial_state, dinitial_norm;
};
DecayReferenceResult DecayReference(const DecayReferenceProblem& problem);

}  // namespace halflife::kernels
