// Random problems of the selective scan, and the oracle's results, for tests of the CPU's loops and
// of the emulated CUDA kernels.
#pragma once

#include <cmath>
#include <string>

#include "kernels/rows_support.h"
#include "kernels/scans/selective_scan_reference.h"

namespace halflife::kernels::test {

struct ScanCase {
  int64_t seq_len, channels, states;
  bool documents = false, initial = false;
};

inline std::string Name(const ScanCase& c) {
  return "T " + std::to_string(c.seq_len) + ", I " + std::to_string(c.channels) + ", N " +
         std::to_string(c.states) + (c.documents ? ", documents" : "") +
         (c.initial ? ", initial state" : "");
}

inline constexpr int64_t kScanBatch = 2;

// T is the storage type of the activations.
template <typename T>
struct ScanProblem {
  explicit ScanProblem(const ScanCase& c) {
    const auto stored = [](int64_t count, uint64_t seed) {
      return Array<T>(Random(count, seed)).values();
    };
    const auto weights = [](int64_t count, uint64_t seed) {
      return Array<float>(Random(count, seed)).values();
    };
    const int64_t tokens = kScanBatch * c.seq_len, states = kScanBatch * c.channels * c.states;
    oracle = {.batch = kScanBatch,
              .seq_len = c.seq_len,
              .channels = c.channels,
              .states = c.states,
              .x = stored(tokens * c.channels, 1),
              .delta = stored(tokens * c.channels, 2),
              .delta_bias = weights(c.channels, 3),
              .skip = weights(c.channels, 4),
              .a = weights(c.channels * c.states, 5),
              .b = stored(tokens * c.states, 6),
              .c = stored(tokens * c.states, 7),
              .dy = stored(tokens * c.channels, 8),
              .dfinal = weights(states, 9)};
    // Steps from thousandths, with which a state lasts for a thousand tokens, to tens.
    for (int64_t i = 0; i < c.channels; ++i)
      oracle.delta_bias[i] = static_cast<float>(static_cast<double>(i % 5) * 4 - 7);
    for (double& a : oracle.a) a = static_cast<float>(-std::exp(a));
    oracle.starts.assign(c.documents ? tokens : 0, 0);
    for (int64_t t = 0; c.documents && t < c.seq_len; ++t)
      oracle.starts[t] = t % 23 == 0, oracle.starts[c.seq_len + t] = t == 3 || t == 4 || t == 140;
    if (c.initial) oracle.initial = weights(states, 10);
  }
  ScanReferenceProblem oracle;
};

// The results of a kernel.
struct ScanGot {
  Values y, final, dx, ddelta, ddelta_bias, dskip, da, db, dc, dinitial;
};

// Compares a kernel with the oracle. Factors e^{step a} with errors of 2^-23 are multiplied over
// the lifetime of a state, up to a few hundred tokens here, and as many terms are summed. The
// weights' gradients sum over all tokens.
template <typename T>
void ExpectOracle(const ScanProblem<T>& problem, const ScanGot& got) {
  constexpr double kFp32 = 2e-5;
  const ScanReferenceResult want = ScanReference(problem.oracle);
  ExpectClose<T>("y", got.y, want.y, kFp32);
  ExpectClose<float>("final", got.final, want.final, kFp32);
  ExpectClose<T>("dx", got.dx, want.dx, kFp32);
  ExpectClose<T>("ddelta", got.ddelta, want.ddelta, kFp32);
  ExpectClose<float>("ddelta_bias", got.ddelta_bias, want.ddelta_bias, kFp32);
  ExpectClose<float>("dskip", got.dskip, want.dskip, kFp32);
  ExpectClose<float>("da", got.da, want.da, kFp32);
  ExpectClose<T>("db", got.db, want.db, kFp32);
  ExpectClose<T>("dc", got.dc, want.dc, kFp32);
  if (!problem.oracle.initial.empty())
    ExpectClose<float>("dinitial", got.dinitial, want.dinitial, kFp32);
}

// Covers lengths around tiles of 16 and 32 tokens and a GPU's segments of 128; channels around
// blocks of 64 and 128; states around groups of 8.
inline std::vector<ScanCase> ScanCases() {
  std::vector<ScanCase> cases;
  for (const int64_t seq_len : {1, 2, 15, 16, 17, 31, 33, 70})
    for (const bool rest : {false, true}) cases.push_back({seq_len, 5, 3, rest, rest});
  for (const int64_t channels : {1, 64, 67, 130}) cases.push_back({19, channels, 4, true, true});
  for (const int64_t states : {1, 7, 8, 9, 16, 33}) cases.push_back({35, 5, states, true, true});
  for (const bool documents : {false, true}) {
    cases.push_back({300, 5, 3, documents, true});
    cases.push_back({300, 5, 3, documents, false});
  }
  return cases;
}

}  // namespace halflife::kernels::test
