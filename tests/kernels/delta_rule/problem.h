// Random problems for all kernels of the delta rule, and the oracle's results.
//
//   const Problem problem = MakeProblem({.T = 65, .decay = DeltaDecay::kPerToken}, seed);
//   ExpectClose(problem, RunCpu<float>(problem), Oracle(problem), {.forward = 2e-6});
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/bfloat16.h"
#include "kernels/delta_rule/delta_rule_reference.h"
#include "kernels/delta_rule/golden.h"

namespace halflife::kernels::test::delta {

using Values = std::vector<double>;
// By name: "out", "dq", ...
using Result = std::map<std::string, Values>;

enum class Gate {
  kLearned,  // softplus gates, mostly between 0.5 and 1
  kOne,      // exactly 1
  kNearOne,  // 1 - 1e-6
  kStrong,   // e^-5 in every channel
  kResets,   // kLearned, and 0 at random positions, including both ends of a chunk
};
enum class Keys {
  kRandom,      // unit vectors
  kEqual,       // one unit vector for all tokens
  kCorrelated,  // a common vector plus noise, then unit length
  kZero,
};

struct Case {
  int B = 2, T = 65, H = 2, per_head = 1, K = 24, V = 40;  // per_head: HV / H
  DeltaDecay decay = DeltaDecay::kPerToken;
  Gate gate = Gate::kLearned;
  Keys keys = Keys::kRandom;
  double beta_scale = 2;   // beta = beta_scale sigmoid(x), or
  double beta_fixed = -1;  // beta for all tokens, if not negative
  int chunk_size = kDeltaChunkSize;
  bool bf16 = false;                          // q, k, v and dout are representable in bf16
  bool warpgroups = false;                    // CUDA: by Hopper's instructions
  std::vector<int32_t> document_starts = {};  // b T + t
  std::vector<int32_t> cu_seqlens = {};       // requires B = 1
  int unused_chunks = 0;                      // entries of the table after the chunks

  int value_heads() const { return H * per_head; }
  int num_sequences() const {
    return cu_seqlens.empty() ? B : static_cast<int>(cu_seqlens.size()) - 1;
  }
};

// All values are rounded to fp32 (or bf16) first, so the oracle and the kernels read the same
// numbers. The states are [num_sequences, HV, K, V].
struct Problem {
  Case config;
  uint64_t seed = 0;
  DeltaReferenceProblem data;
};

inline double DrawLogDecay(Gate gate, std::mt19937_64& random, int64_t token) {
  std::normal_distribution<double> normal;
  const double learned = -std::log1p(std::exp(normal(random) - 1.5));
  const bool reset = std::uniform_real_distribution<double>(0, 1)(random) < 0.05 ||
                     token % 64 == 0 || token % 64 == 63;
  switch (gate) {
    case Gate::kLearned:
      return learned;
    case Gate::kOne:
      return 0;
    case Gate::kNearOne:
      return std::log1p(-1e-6);
    case Gate::kStrong:
      return -5;
    case Gate::kResets:
      return reset ? -std::numeric_limits<double>::infinity() : learned;
  }
  return 0;
}

inline Values DrawKeys(const Case& c, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  Values common(static_cast<size_t>(c.H) * c.K);
  for (double& x : common) x = normal(random);
  Values keys;
  for (int token = 0; token < c.B * c.T; ++token)
    for (const double x : common) {
      const double noise = normal(random);
      keys.push_back(c.keys == Keys::kRandom       ? noise
                     : c.keys == Keys::kCorrelated ? 2 * x + noise
                     : c.keys == Keys::kEqual      ? x
                                                   : 0);
    }
  NormaliseRows(keys, c.K);
  return keys;
}

inline Problem MakeProblem(Case config, uint64_t seed) {
  const Case& c = config;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto rounded = [&](Values values, bool bf16) {
    for (double& x : values) {
      x = static_cast<float>(x);
      if (bf16) x = Widen(RoundToBf16(static_cast<float>(x)));
    }
    return values;
  };
  const auto draw = [&](int64_t count) {
    Values values(count);
    for (double& x : values) x = normal(random);
    return values;
  };
  const int64_t tokens = int64_t{1} * c.B * c.T, HV = c.value_heads();
  const int64_t states = c.num_sequences() * HV * c.K * c.V;
  DeltaReferenceProblem p;
  p.batch = c.B;
  p.seq_len = c.T;
  p.num_heads = c.H;
  p.num_value_heads = HV;
  p.head_dim_k = c.K;
  p.head_dim_v = c.V;
  p.decay = c.decay;
  p.scale = static_cast<float>(1 / std::sqrt(c.K));
  p.q = draw(tokens * c.H * c.K);
  NormaliseRows(p.q, c.K);
  p.q = rounded(std::move(p.q), c.bf16);
  p.k = rounded(DrawKeys(c, random), c.bf16);
  p.v = rounded(draw(tokens * HV * c.V), c.bf16);
  p.dout = rounded(draw(tokens * HV * c.V), c.bf16);
  p.beta = draw(tokens * HV);
  for (double& x : p.beta)
    x = static_cast<float>(c.beta_fixed >= 0 ? c.beta_fixed : c.beta_scale / (1 + std::exp(-x)));
  if (c.decay != DeltaDecay::kNone) {
    const int64_t width = HV * (c.decay == DeltaDecay::kPerToken ? 1 : c.K);
    p.log_decay.resize(tokens * width);
    for (int64_t i = 0; i < tokens * width; ++i)
      p.log_decay[i] = static_cast<float>(DrawLogDecay(c.gate, random, i / width % c.T));
  }
  p.initial_state = rounded(draw(states), false);
  p.dfinal_state = rounded(draw(states), false);
  p.starts.assign(tokens, 0);
  for (const int32_t start : c.document_starts) p.starts[start] = 1;
  return {.config = std::move(config), .seed = seed, .data = std::move(p)};
}

// Returns the part of a problem with one row that consists of tokens [begin, end) as sequence n.
inline DeltaReferenceProblem SequenceProblem(const DeltaReferenceProblem& whole, int64_t begin,
                                             int64_t end, int64_t n) {
  DeltaReferenceProblem p = whole;
  p.batch = 1;
  p.seq_len = end - begin;
  const auto cut = [&](Values& x) {
    const int64_t width = static_cast<int64_t>(x.size()) / std::max<int64_t>(1, whole.seq_len);
    x = Values(x.begin() + begin * width, x.begin() + end * width);
  };
  for (Values* x : {&p.q, &p.k, &p.v, &p.log_decay, &p.beta, &p.dout}) cut(*x);
  p.starts.clear();
  const int64_t size = p.num_value_heads * p.head_dim_k * p.head_dim_v;
  for (Values* x : {&p.initial_state, &p.dfinal_state})
    if (!x->empty()) *x = Values(x->begin() + n * size, x->begin() + (n + 1) * size);
  return p;
}

inline Result ToResult(DeltaReferenceResult r) {
  Result result = {{"out", std::move(r.out)}, {"final_state", std::move(r.final_state)},
                   {"dq", std::move(r.dq)},   {"dk", std::move(r.dk)},
                   {"dv", std::move(r.dv)},   {"dbeta", std::move(r.dbeta)}};
  result["dinitial_state"] = std::move(r.dinitial_state);
  if (!r.dlog_decay.empty()) result["dlog_decay"] = std::move(r.dlog_decay);
  return result;
}

inline Problem ByWarpgroups(Problem problem) {
  problem.config.warpgroups = true;
  return problem;
}

inline Result Oracle(const Problem& problem) {
  const Case& c = problem.config;
  if (c.cu_seqlens.empty()) return ToResult(DeltaReference(problem.data));
  Result joined;
  for (int n = 0; n < c.num_sequences(); ++n) {
    const Result part = ToResult(
        DeltaReference(SequenceProblem(problem.data, c.cu_seqlens[n], c.cu_seqlens[n + 1], n)));
    for (const auto& [name, values] : part)
      joined[name].insert(joined[name].end(), values.begin(), values.end());
  }
  return joined;
}

// ---- comparison ----

struct Gates {
  double forward = 0;    // out, final_state
  double gradients = 0;  // 0: as forward
};
struct Difference {
  double relative = 0;  // root mean square of the errors, divided by that of `want`
  size_t worst = 0;
};
// Compares element by element. NaN and infinity give an infinite difference. A tensor of zeros is
// compared absolutely.
inline Difference Compare(const Values& got, const Values& want) {
  Difference d;
  double errors = 0, squares = 0, largest = -1;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(got[i] - want[i]);
    if (!(error <= std::numeric_limits<double>::max()))
      return {std::numeric_limits<double>::infinity(), i};
    if (error > largest) largest = error, d.worst = i;
    errors += error * error;
    squares += want[i] * want[i];
  }
  d.relative = squares > 0 ? std::sqrt(errors / squares) : std::sqrt(errors);
  return d;
}
inline std::string Describe(const Problem& problem) {
  const Case& c = problem.config;
  return "B " + std::to_string(c.B) + " T " + std::to_string(c.T) + " H " + std::to_string(c.H) +
         " HV " + std::to_string(c.value_heads()) + " K " + std::to_string(c.K) + " V " +
         std::to_string(c.V) + " decay " + std::to_string(static_cast<int>(c.decay)) + " gate " +
         std::to_string(static_cast<int>(c.gate)) + " keys " +
         std::to_string(static_cast<int>(c.keys)) + " beta " + std::to_string(c.beta_fixed) +
         " chunk " + std::to_string(c.chunk_size) + " seed " + std::to_string(problem.seed) +
         (c.warpgroups ? " by warpgroups" : "");
}
inline void ExpectClose(const Problem& problem, const Result& got, const Result& want,
                        const Gates& gates) {
  for (const auto& [name, values] : want) {
    ASSERT_TRUE(got.contains(name)) << name;
    ASSERT_EQ(got.at(name).size(), values.size()) << name << ", " << Describe(problem);
    const bool forward = name == "out" || name == "final_state";
    const Difference d = Compare(got.at(name), values);
    EXPECT_LE(d.relative, forward || gates.gradients == 0 ? gates.forward : gates.gradients)
        << name << ", worst at " << d.worst << ": " << (values.empty() ? 0 : got.at(name)[d.worst])
        << ", not " << (values.empty() ? 0 : values[d.worst]) << "; " << Describe(problem);
  }
}
inline void ExpectSameBits(const Problem& problem, const Result& got, const Result& want) {
  for (const auto& [name, values] : want)
    EXPECT_EQ(got.at(name), values) << name << ", " << Describe(problem);
}

}  // namespace halflife::kernels::test::delta
