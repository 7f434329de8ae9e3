// The reference: the recurrence token by token in fp64, plain loops over plain memory, forward and
// (by the adjoint recurrence) every gradient. It stores sums of exponentials directly, which fp64
// allows for keys up to a few hundred. Slow on purpose; only tests and benchmarks may call it.
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::kernels {

// The sums A and B of the state (wkv4_args.h), [B, D] each.
struct WkvReferenceState {
  std::vector<double> numerator, denominator;
};

struct WkvReferenceProblem {
  int64_t batch = 1, seq_len = 0, dim = 1;
  std::vector<double> k, v;              // [B, T, D]
  std::vector<double> log_decay, bonus;  // [D]
  std::vector<uint8_t> starts;           // [B, T] or empty
  WkvReferenceState initial;             // empty: there was no token
  std::vector<double> dout;              // [B, T, D] or empty: forward only
  WkvReferenceState dfinal;              // or empty
};
struct WkvReferenceResult {
  std::vector<double> out;
  WkvReferenceState final;
  std::vector<double> dk, dv, dlog_decay, dbonus;  // empty if only the forward was requested
  WkvReferenceState dinitial;
};
WkvReferenceResult WkvReference(const WkvReferenceProblem& problem);

}  // namespace halflife::kernels
