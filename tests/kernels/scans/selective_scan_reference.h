// The reference: the recurrence token by token in fp64, plain loops over plain memory, forward and
// (by the adjoint recurrence) every gradient. Slow on purpose; only tests and benchmarks may call
// it.
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::kernels {

struct ScanReferenceProblem {
  int64_t batch = 1, seq_len = 0, channels = 1, states = 1;
  std::vector<double> x, delta;          // [B, T, I]
  std::vector<double> delta_bias, skip;  // [I]
  std::vector<double> a;                 // [I, N]
  std::vector<double> b, c;              // [B, T, N]
  std::vector<uint8_t> starts;           // [B, T] or empty
  std::vector<double> initial;           // [B, I, N] or empty
  std::vector<double> dy;                // [B, T, I] or empty: forward only
  std::vector<double> dfinal;            // [B, I, N] or empty
};
struct ScanReferenceResult {
  std::vector<double> y, final;
  // Empty if only the forward was requested.
  std::vector<double> dx, ddelta, ddelta_bias, dskip, da, db, dc, dinitial;
};
ScanReferenceResult ScanReference(const ScanReferenceProblem& problem);

}  // namespace halflife::kernels
