// The oracle: the recurrence token by token in fp64, plain loops over plain memory, forward and (by
// the adjoint recurrence) every gradient. Slow on purpose; nothing but tests and benches may call
// it.
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::kernels {

struct DecayReferenceProblem {
  int64_t batch = 1, seq_len = 0, num_heads = 1, head_dim_k = 1, head_dim_v = 1;
  double scale = 1;
  std::vector<double> q, k;           // [B, T, H, K]
  std::vector<double> v;              // [B, T, H, V]
  std::vector<double> log_decay;      // [B, T, H, K] (expand constants and per-head decays first)
  std::vector<double> key_scale;      // [B, T, H] or empty: 1
  std::vector<uint8_t> starts;        // [B, T] or empty
  std::vector<double> initial_state;  // [B, H, K, V] or empty
  std::vector<double> dout;           // [B, T, H, V] or empty: forward only
  std::vector<double> dfinal_state;   // [B, H, K, V] or empty
  // out = n / (d + norm_eps): d is read from z like n from S, where z sums keys alone.
  bool normalised = false;
  double norm_eps = 1e-30;
  std::vector<double> initial_norm, dfinal_norm;  // [B, H, K] or empty
};
struct DecayReferenceResult {
  std::vector<double> out, final_state, final_norm;
  // Empty for forward only; norms only where normalised.
  std::vector<double> dq, dk, dv, dlog_decay, dkey_scale, dinitial_state, dinitial_norm;
};
DecayReferenceResult DecayReference(const DecayReferenceProblem& problem);

}  // namespace halflife::kernels
