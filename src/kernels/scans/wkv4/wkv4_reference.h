// The oracle: the recurrence token by token in fp64, plain loops over plain memory, forward and (by
// the adjoint recurrence) every gradient. It holds sums of exponentials as they are, which fp64 can
// up to keys of some hundred. Slow on purpose; nothing but tests and benches may call it.
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::kernels {

// Sums of the state, A and B of args.h, [B, D] each.
struct WkvReferenceState {
  std::vector<double> numerator, denominator;
};

struct WkvReferenceProblem {
  int64_t batch = 1, seq_len = 0, dim = 1;
  std::vector<double> k, v;              // [B, T, D]
  std::vector<double> log_decay, bonus;  // [D]
  std::vector<uint8_t> starts;           // [B, T] or empty
  WkvReferenceState initial;             // empty: nothing was seen
  std::vector<double> dout;              // [B, T, D] or empty: forward only
  WkvReferenceState dfinal;              // or empty
};
struct WkvReferenceResult {
  std::vector<double> out;
  WkvReferenceState final;
  std::vector<double> dk, dv, dlog_decay, dbonus;  // empty for forward only
  WkvReferenceState dinitial;
};
WkvReferenceResult WkvReference(const WkvReferenceProblem& problem);

}  // namespace halflife::kernels
