// Random problems for all kernels of decay attention, and the oracle's results.
//
//   const RandomProblem problem = MakeProblem({.T = 65, .kind = DecayKind::kPerToken}, seed);
//   const Result want = Reference(problem), got = RunCpu<float>(problem, {.chunk_size = 64});
//   ExpectClose(problem, got, want, kFloatGates);
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/decay_attention_reference.h"
#include "ops/decay_attention/stored_tensor.h"

namespace halflife::kernels::test {

constexpr double kNever = -std::numeric_limits<double>::infinity();

enum class Strength {
  kGates,    // Like a trained gate: between 0.5 and 1.
  kMild,     // Between 0.9 and 1, so distant tokens matter.
  kOne,      // Exactly 1.
  kNearOne,  // 1 - 1e-6
  kStrong,   // 1e-3
  kVanish,   // 1e-30
  kResets,   // kGates, and 0 at random positions, including the first and last token of a chunk.
  kMixed,    // 1 or 0 at random.
  kRandom,   // Any of 0, e^-1e4, e^-90, 1e-30 .. 1.
  kGrowth,   // e^(60/64) per token: e^60 over a chunk.
};

struct ProblemConfig {
  int B = 2, T = 65, H = 2, K = 24, V = 40;
  int q_heads = 0, k_heads = 0, v_heads = 0, decay_heads = 0;  // 0: H
  DecayKind kind = DecayKind::kPerToken;
  Strength strength = Strength::kGates;
  bool normalised = false, key_scale = false, states = true;
  bool positive = false;  // q and k > 0, as a normalizer requires.
  double v_mean = 0;      // Mean of each channel of v, whose deviation is 1.
  double norm_eps = 1e-30;
  bool bf16 = false;                          // q, k, v and dout are representable in bf16.
  bool ternary = false;                       // q, k, v and dout are -1, 0 or 1.
  std::vector<int32_t> document_starts = {};  // Flat token numbers.
  std::vector<int32_t> cu_seqlens = {};       // Requires B = 1.

  int num_sequences() const {
    return cu_seqlens.empty() ? B : static_cast<int>(cu_seqlens.size()) - 1;
  }
  int decay_width() const { return IsPerChannel(kind) ? K : 1; }
};

// All values are rounded to fp32 (or bf16) first, so the oracle and the kernels read the same
// numbers.
struct RandomProblem {
  ProblemConfig config;
  uint64_t seed = 0;
  double scale = 1;
  Values q, k, v, log_decay, key_scale, dout;  // Each with its own number of heads.
  Values initial_state, initial_norm, dfinal_state, dfinal_norm;
};

// By name: "out", "dq", ...
using Result = std::map<std::string, Values>;

inline double LogDecay(Strength strength, std::mt19937_64& random, int64_t token) {
  const double uniform = std::uniform_real_distribution<double>(0, 1)(random);
  const double draw = std::uniform_real_distribution<double>(0, 1)(random);
  switch (strength) {
    case Strength::kGates:
      return -0.7 * uniform;
    case Strength::kMild:
      return -0.1 * uniform;
    case Strength::kOne:
      return 0;
    case Strength::kNearOne:
      return std::log1p(-1e-6);
    case Strength::kStrong:
      return std::log(1e-3);
    case Strength::kVanish:
      return std::log(1e-30);
    case Strength::kResets:
      return draw < 0.05 || token % 64 == 0 || token % 64 == 63 ? kNever : -0.7 * uniform;
    case Strength::kMixed:
      return draw < 0.5 ? kNever : 0;
    case Strength::kRandom:
      return draw < 0.05  ? kNever
             : draw < 0.1 ? -1e4
             : draw < 0.2 ? -90
             : draw < 0.3 ? 0
                          : -69 * std::pow(uniform, 4);
    case Strength::kGrowth:
      return 60.0 / 64;
  }
  return 0;
}

inline RandomProblem MakeProblem(ProblemConfig config, uint64_t seed) {
  for (int* heads : {&config.q_heads, &config.k_heads, &config.v_heads, &config.decay_heads})
    if (*heads == 0) *heads = config.H;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto draw = [&](int64_t count, bool positive = false) {
    Values values(count);
    for (double& x : values) {
      x = static_cast<float>(normal(random));
      if (positive) x = std::abs(x) + 0.125;
    }
    return values;
  };
  const int64_t tokens = int64_t{1} * config.B * config.T;
  const int64_t norms = int64_t{1} * config.num_sequences() * config.H * config.K;
  RandomProblem problem;
  problem.seed = seed;
  problem.scale = static_cast<float>(1 / std::sqrt(config.K));
  problem.q = draw(tokens * config.q_heads * config.K, config.positive);
  problem.k = draw(tokens * config.k_heads * config.K, config.positive);
  problem.v = draw(tokens * config.v_heads * config.V);
  for (double& x : problem.v) x += config.v_mean;
  problem.dout = draw(tokens * config.H * config.V);
  if (config.bf16)
    for (Values* x : {&problem.q, &problem.k, &problem.v, &problem.dout})
      for (double& value : *x) value = Widen(RoundToBf16(static_cast<float>(value)));
  if (config.ternary)
    for (Values* x : {&problem.q, &problem.k, &problem.v, &problem.dout})
      for (double& value : *x) value = std::clamp(std::round(value), -1.0, 1.0);
  if (config.key_scale) problem.key_scale = draw(tokens * config.H, config.positive);
  if (config.states) {
    problem.initial_state = draw(norms * config.V);
    problem.dfinal_state = draw(norms * config.V);
    if (config.normalised) problem.initial_norm = draw(norms, true);
    // As if earlier values had this mean.
    for (size_t i = 0; config.normalised && i < problem.initial_state.size(); ++i)
      problem.initial_state[i] = static_cast<float>(
          problem.initial_state[i] + config.v_mean * problem.initial_norm[i / config.V]);
    if (config.normalised) problem.dfinal_norm = draw(norms);
  }
  if (config.kind != DecayKind::kNone) {
    const int64_t width = int64_t{1} * config.decay_heads * config.decay_width();
    problem.log_decay.resize((IsPerToken(config.kind) ? tokens : 1) * width);
    for (size_t i = 0; i < problem.log_decay.size(); ++i)
      problem.log_decay[i] =
          static_cast<float>(LogDecay(config.strength, random, i / width % std::max(config.T, 1)));
  }
  problem.config = std::move(config);
  return problem;
}

// ---- The oracle, on separate sequences with expanded heads ----

// Tokens [begin, end) of sequence n; `row` is its row in the batch.
struct Extent {
  int row = 0, begin = 0, end = 0;
};
inline Extent SequenceExtent(const ProblemConfig& config, int n) {
  if (config.cu_seqlens.empty()) return {n, 0, config.T};
  return {0, config.cu_seqlens[n], config.cu_seqlens[n + 1]};
}
// Extracts x[B, T, heads, width] of one sequence and output head, or adds it back.
inline int64_t RowIndex(const ProblemConfig& config, const Extent& extent, int t, int heads,
                        int head) {
  const int64_t token = int64_t{1} * extent.row * config.T + extent.begin + t;
  return token * heads + int64_t{1} * head * heads / config.H;
}
inline Values Slice(const ProblemConfig& config, const Extent& extent, const Values& x, int heads,
                    int head, int width) {
  Values slice;
  for (int t = 0; t < extent.end - extent.begin; ++t) {
    const int64_t row = RowIndex(config, extent, t, heads, head) * width;
    slice.insert(slice.end(), x.begin() + row, x.begin() + row + width);
  }
  return slice;
}
inline void AddSlice(const ProblemConfig& config, const Extent& extent, const Values& slice,
                     int heads, int head, int width, Values& x) {
  for (int t = 0; t < extent.end - extent.begin; ++t)
    for (int i = 0; i < width; ++i)
      x[RowIndex(config, extent, t, heads, head) * width + i] += slice[int64_t{1} * t * width + i];
}

inline Result EmptyResult(const RandomProblem& problem) {
  const ProblemConfig& c = problem.config;
  const int64_t tokens = int64_t{1} * c.B * c.T;
  const int64_t norms = int64_t{1} * c.num_sequences() * c.H * c.K;
  Result result;
  result["out"].resize(tokens * c.H * c.V);
  result["final_state"].resize(norms * c.V);
  result["dq"].resize(tokens * c.q_heads * c.K);
  result["dk"].resize(tokens * c.k_heads * c.K);
  result["dv"].resize(tokens * c.v_heads * c.V);
  result["dinitial_state"].resize(norms * c.V);
  if (c.kind != DecayKind::kNone)
    result[IsPerToken(c.kind) ? "dlog_decay" : "dlambda"].resize(problem.log_decay.size());
  if (c.key_scale) result["dkey_scale"].resize(tokens * c.H);
  if (c.normalised) result["final_norm"].resize(norms);
  if (c.normalised) result["dinitial_norm"].resize(norms);
  return result;
}

inline DecayReferenceProblem HeadProblem(const RandomProblem& problem, int n, int head) {
  const ProblemConfig& c = problem.config;
  const Extent extent = SequenceExtent(c, n);
  const int length = extent.end - extent.begin;
  DecayReferenceProblem p;
  p.seq_len = length;
  p.head_dim_k = c.K;
  p.head_dim_v = c.V;
  p.scale = problem.scale;
  p.normalised = c.normalised;
  p.norm_eps = c.norm_eps;
  p.q = Slice(c, extent, problem.q, c.q_heads, head, c.K);
  p.k = Slice(c, extent, problem.k, c.k_heads, head, c.K);
  p.v = Slice(c, extent, problem.v, c.v_heads, head, c.V);
  p.dout = Slice(c, extent, problem.dout, c.H, head, c.V);
  if (c.key_scale) p.key_scale = Slice(c, extent, problem.key_scale, c.H, head, 1);
  p.log_decay.assign(int64_t{1} * length * c.K, 0.0);
  const int width = c.decay_width(), shared = head * c.decay_heads / c.H;
  for (int t = 0; c.kind != DecayKind::kNone && t < length; ++t)
    for (int i = 0; i < c.K; ++i) {
      const int64_t row = IsPerToken(c.kind) ? RowIndex(c, extent, t, c.decay_heads, head) : shared;
      p.log_decay[int64_t{1} * t * c.K + i] = problem.log_decay[row * width + (width == 1 ? 0 : i)];
    }
  p.starts.assign(length, 0);
  for (const int32_t start : c.document_starts) {
    const int t = start - extent.row * c.T - extent.begin;
    if (t >= 0 && t < length) p.starts[t] = 1;
  }
  const int64_t at = int64_t{1} * n * c.H + head, size = int64_t{1} * c.K * c.V;
  const auto part = [&](const Values& x, int64_t count) {
    return x.empty() ? Values() : Values(x.begin() + at * count, x.begin() + (at + 1) * count);
  };
  p.initial_state = part(problem.initial_state, size);
  p.dfinal_state = part(problem.dfinal_state, size);
  p.initial_norm = part(problem.initial_norm, c.K);
  p.dfinal_norm = part(problem.dfinal_norm, c.K);
  return p;
}

inline Result Reference(const RandomProblem& problem) {
  const ProblemConfig& c = problem.config;
  Result result = EmptyResult(problem);
  for (int n = 0; n < c.num_sequences(); ++n) {
    const Extent extent = SequenceExtent(c, n);
    for (int head = 0; head < c.H; ++head) {
      const DecayReferenceProblem head_problem = HeadProblem(problem, n, head);
      DecayReferenceResult r = DecayReference(head_problem);
      if (head_problem.seq_len == 0) {  // Without dout, the oracle runs only forward.
        r.dinitial_state = head_problem.dfinal_state;
        r.dinitial_norm = head_problem.dfinal_norm;
      }
      AddSlice(c, extent, r.out, c.H, head, c.V, result["out"]);
      AddSlice(c, extent, r.dq, c.q_heads, head, c.K, result["dq"]);
      AddSlice(c, extent, r.dk, c.k_heads, head, c.K, result["dk"]);
      AddSlice(c, extent, r.dv, c.v_heads, head, c.V, result["dv"]);
      if (c.key_scale) AddSlice(c, extent, r.dkey_scale, c.H, head, 1, result["dkey_scale"]);
      const int width = c.decay_width(), shared = head * c.decay_heads / c.H;
      for (int t = 0; c.kind != DecayKind::kNone && t < extent.end - extent.begin; ++t)
        for (int i = 0; i < c.K; ++i) {
          const int64_t row =
              IsPerToken(c.kind) ? RowIndex(c, extent, t, c.decay_heads, head) : shared;
          result[IsPerToken(c.kind) ? "dlog_decay" : "dlambda"]
                [row * width + (width == 1 ? 0 : i)] += r.dlog_decay[int64_t{1} * t * c.K + i];
        }
      const int64_t at = int64_t{1} * n * c.H + head;
      const auto place = [&](const Values& part, const char* name) {
        std::copy(part.begin(), part.end(),
                  result[name].begin() + at * static_cast<int64_t>(part.size()));
      };
      place(r.final_state, "final_state");
      place(r.dinitial_state, "dinitial_state");
      if (c.normalised) place(r.final_norm, "final_norm");
      if (c.normalised) place(r.dinitial_norm, "dinitial_norm");
    }
  }
  return result;
}

}  // namespace halflife::kernels::test
