// The oracle: the recurrence token by token in fp64, plain loops over plain memory, forward and (by the adjoint
// recurrence) every gradient. Slow on purpose; nothing but tests and benches may call it.
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
  std::vector<uint8_t> starts;        // [B, T] or empty
  std::vector<double> initial_state;  // [B, H, K, V] or empty
  std::vector<double> dout;           // [B, T, H, V] or empty: forward only
  std::vector<double> dfinal_state;   // [B, H, K, V] or empty
};
struct DecayReferenceResult {
  std::vector<double> out, final_state;
  std::vector<double> dq, dk, dv, dlog_decay, dinitial_state;  // empty for forward only
};
DecayReferenceResult DecayReference(const DecayReferenceProblem& problem);

}  // namespace halflife::kernels
