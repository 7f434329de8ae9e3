// The reference implementation of the delta rule for tests and benchmarks: the recurrence token by
// token in fp64, with forward and (by the adjoint recurrence) every gradient. It is deliberately
// simple and slow.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/delta_rule/delta_rule_args.h"

namespace halflife::kernels {

struct DeltaReferenceProblem {
  int64_t batch = 1, seq_len = 0, num_heads = 1, num_value_heads = 1;
  int64_t head_dim_k = 1, head_dim_v = 1;
  DeltaDecay decay = DeltaDecay::kNone;
  double scale = 1;
  std::vector<double> q, k;           // [B, T, H, K]
  std::vector<double> v;              // [B, T, HV, V]
  std::vector<double> log_decay;      // [B, T, HV] or [B, T, HV, K]; empty with kNone
  std::vector<double> beta;           // [B, T, HV]
  std::vector<uint8_t> starts;        // [B, T], 1 where a document starts; or empty
  std::vector<double> initial_state;  // [B, HV, K, V] or empty
  std::vector<double> dout;           // [B, T, HV, V] or empty (forward only)
  std::vector<double> dfinal_state;   // [B, HV, K, V] or empty
};
struct DeltaReferenceResult {
  std::vector<double> out, final_state;
  // Empty if the problem is forward only.
  std::vector<double> dq, dk, dv, dlog_decay, dbeta, dinitial_state;
};
DeltaReferenceResult DeltaReference(const DeltaReferenceProblem& problem);

}  // namespace halflife::kernels
