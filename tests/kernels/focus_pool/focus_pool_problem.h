// Random problems of focus pooling on plain arrays, and the comparison of results with the
// oracle's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/concat.h"
#include "kernels/focus_pool/focus_pool_args.h"
#include "kernels/focus_pool/focus_pool_reference.h"
#include "kernels/rows_support.h"

namespace halflife::kernels::test {

struct FocusCase {
  int64_t seq_len = 1, window = 0, dim = 8;
  int64_t batch = 1, num_heads = 1;
  double spread = 1;  // Log weights are uniform in +- this.
  double eps = 0;
  bool documents = false, state = false;
  double masked = 0;  // Share of tokens.
};
inline std::string Name(const FocusCase& c) {
  return Concat("T ", c.seq_len, ", window ", c.window, ", P ", c.dim, ", B ", c.batch, ", H ",
                c.num_heads, ", spread ", c.spread, ", eps ", c.eps,
                c.documents ? ", documents" : "", c.state ? ", state" : "", ", masked ", c.masked);
}

constexpr double kMasked = -std::numeric_limits<double>::infinity();

// All values are rounded to the kernels' type, so the oracle reads the same numbers.
struct FocusProblem {
  FocusCase c;
  std::vector<FocusRun> runs;
  Values log_weight, u, dout;
  Values log_scale, mass, sum, dmass, dsum;  // The state without a window.
  Values tail_log_weight, tail_u;            // The state with a window.
};

template <typename T>
Values Rounded(Values values) {
  if constexpr (sizeof(T) < sizeof(double))
    for (double& x : values) x = Widen(Narrow<T>(static_cast<float>(x)));
  return values;
}

// Returns the runs of row b. With documents, they start at 0 (even rows), 5, 6, 70 + b, 200.
// Otherwise there is one run.
inline std::vector<FocusRun> RunsOf(const FocusCase& c) {
  std::vector<FocusRun> runs;
  for (int64_t b = 0; b < c.batch; ++b) {
    std::vector<int64_t> starts = {0};
    if (c.documents)
      for (const int64_t t : {int64_t{5}, int64_t{6}, 70 + b, int64_t{200}})
        if (t < c.seq_len) starts.push_back(t);
    starts.push_back(c.seq_len);
    for (size_t i = 0; i + 1 < starts.size(); ++i)
      runs.push_back({.row = b,
                      .begin = starts[i],
                      .length = starts[i + 1] - starts[i],
                      .sequence = i > 0 || (c.documents && b % 2 == 0) ? -1 : b,
                      .final_state = i + 2 == starts.size() ? b : -1});
  }
  return runs;
}

inline Values LogWeights(const FocusCase& c, int64_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> uniform(-c.spread, c.spread), share(0, 1);
  Values values(count);
  for (double& x : values) {
    x = uniform(engine);
    if (share(engine) < c.masked) x = kMasked;
  }
  return values;
}

// T is the storage type of u.
template <typename T>
FocusProblem MakeFocusProblem(const FocusCase& c, uint64_t seed = 1) {
  using Compute = FocusCompute<T>;
  const int64_t tokens = c.batch * c.seq_len * c.num_heads, states = c.batch * c.num_heads;
  FocusProblem p = {.c = c, .runs = RunsOf(c)};
  p.log_weight = Rounded<Compute>(LogWeights(c, tokens, seed));
  p.u = Rounded<T>(Random(tokens * c.dim, seed + 1));
  p.dout = Rounded<T>(Random(tokens * c.dim, seed + 2));
  if (c.state && c.window == 0) {
    p.log_scale = Rounded<Compute>(LogWeights(c, states, seed + 3));
    p.mass = Values(states, 1.5);
    for (int64_t i = 0; i < states; ++i)
      if (p.log_scale[i] == kMasked) p.log_scale[i] = p.mass[i] = 0;  // No token was seen.
    p.sum = Rounded<Compute>(Random(states * c.dim, seed + 4));
    p.dmass = Rounded<Compute>(Random(states, seed + 5));
    p.dsum = Rounded<Compute>(Random(states * c.dim, seed + 6));
  }
  if (c.state && c.window > 1) {
    p.tail_log_weight = Rounded<Compute>(LogWeights(c, states * (c.window - 1), seed + 3));
    p.tail_u = Rounded<T>(Random(states * (c.window - 1) * c.dim, seed + 4));
  }
  return p;
}

template <typename T>
std::vector<T> Stored(const Values& values) {
  std::vector<T> stored(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if constexpr (sizeof(T) == sizeof(double)) {
      stored[i] = values[i];
    } else {
      stored[i] = Narrow<T>(static_cast<float>(values[i]));
    }
  }
  return stored;
}
template <typename T>
Values Wide(const std::vector<T>& stored) {
  Values values;
  for (const T x : stored) {
    if constexpr (sizeof(T) == sizeof(double)) {
      values.push_back(x);
    } else {
      values.push_back(Widen(x));
    }
  }
  return values;
}

struct FocusOutput {
  Values out, row_max, row_sum, log_scale, mass, sum;
  Values dlog_weight, du, dinitial_mass, dinitial_sum, dtail_log_weight, dtail_u;
};

// `engine` has forward(shape, results) and backward(shape, results, grads). All outputs are filled
// with `poison` first.
template <typename T, typename Engine>
FocusOutput RunFocus(const FocusProblem& p, const Engine& engine, double poison) {
  using Compute = FocusCompute<T>;
  const auto pointer = [](auto& vector) { return vector.empty() ? nullptr : vector.data(); };
  const std::vector<T> u = Stored<T>(p.u), dout = Stored<T>(p.dout), tail_u = Stored<T>(p.tail_u);
  const auto log_weight = Stored<Compute>(p.log_weight), log_scale = Stored<Compute>(p.log_scale),
             mass = Stored<Compute>(p.mass), sum = Stored<Compute>(p.sum),
             dmass = Stored<Compute>(p.dmass), dsum = Stored<Compute>(p.dsum),
             tail_log_weight = Stored<Compute>(p.tail_log_weight);
  const FocusPoolShape<T> shape = {.batch = p.c.batch,
                                   .seq_len = p.c.seq_len,
                                   .num_heads = p.c.num_heads,
                                   .dim = p.c.dim,
                                   .window = p.c.window,
                                   .eps = p.c.eps,
                                   .runs = p.runs.data(),
                                   .num_runs = static_cast<int64_t>(p.runs.size()),
                                   .log_weight = log_weight.data(),
                                   .u = u.data(),
                                   .log_scale = pointer(log_scale),
                                   .mass = pointer(mass),
                                   .sum = pointer(sum),
                                   .tail_log_weight = pointer(tail_log_weight),
                                   .tail_u = pointer(tail_u)};
  const auto filled = [&](size_t size) { return Stored<Compute>(Values(size, poison)); };
  std::vector<T> out = Stored<T>(Values(u.size(), poison)), du = out;
  auto row_max = filled(log_weight.size()), row_sum = row_max, dlog_weight = row_max;
  auto final_scale = filled(log_scale.size()), final_mass = final_scale;
  auto final_sum = filled(sum.size());
  const FocusPoolResults<T> results = {.out = out.data(),
                                       .row_max = row_max.data(),
                                       .row_sum = row_sum.data(),
                                       .log_scale = pointer(final_scale),
                                       .mass = pointer(final_mass),
                                       .sum = pointer(final_sum)};
  engine.forward(shape, results);
  // If no run reads the state of a sequence, its gradient is zero. The caller writes these zeros.
  std::vector<Compute> dinitial_mass(mass.size()), dinitial_sum(sum.size()),
      dtail_log_weight(tail_log_weight.size());
  std::vector<T> dtail_u(tail_u.size());
  engine.backward(shape, results,
                  FocusPoolGrads<T>{.dout = dout.data(),
                                    .dmass = pointer(dmass),
                                    .dsum = pointer(dsum),
                                    .dlog_weight = dlog_weight.data(),
                                    .du = du.data(),
                                    .dinitial_mass = pointer(dinitial_mass),
                                    .dinitial_sum = pointer(dinitial_sum),
                                    .dtail_log_weight = pointer(dtail_log_weight),
                                    .dtail_u = pointer(dtail_u)});
  return {.out = Wide(out),
          .row_max = Wide(row_max),
          .row_sum = Wide(row_sum),
          .log_scale = Wide(final_scale),
          .mass = Wide(final_mass),
          .sum = Wide(final_sum),
          .dlog_weight = Wide(dlog_weight),
          .du = Wide(du),
          .dinitial_mass = Wide(dinitial_mass),
          .dinitial_sum = Wide(dinitial_sum),
          .dtail_log_weight = Wide(dtail_log_weight),
          .dtail_u = Wide(dtail_u)};
}

struct FocusOracle {
  void forward(const auto& shape, const auto& results) const { FocusPoolReference(shape, results); }
  void backward(const auto& shape, const auto& results, const auto& grads) const {
    FocusPoolReferenceBackward(shape, results, grads);
  }
};
inline FocusOutput Oracle(const FocusProblem& p) { return RunFocus<double>(p, FocusOracle(), 0); }

inline double Largest(const Values& values) {
  double largest = 0;
  for (const double x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

// Bounds for fused sums in fp32. Outputs are means: weights with a few roundings each, and sums in
// two levels of up to 64 and T / 64 terms. Gradients sum up to T terms of size |dout| (1 + |u|)
// that partly cancel. With log weights up to 80, a weight is the exponential of a difference that
// is rounded to 2^-18, and once more in backward.
struct FocusTolerance {
  double out = 2e-6, gradient = 1e-5;
  static FocusTolerance Of(const FocusProblem& p) {
    return {.out = 2e-6, .gradient = p.c.spread <= 10 ? 1e-5 : 1e-4};
  }
};

// Compares results in storage T with the oracle's. bf16 results may also differ by one rounding.
template <typename T>
void ExpectFocusClose(const FocusProblem& p, const FocusOutput& got, const FocusOutput& want) {
  const FocusTolerance tolerance = FocusTolerance::Of(p);
  const double u = std::max(Largest(p.u), Largest(p.tail_u));
  const double state = p.sum.empty() ? 0 : Largest(p.sum);
  const double means = tolerance.out * std::max(u, state);
  const double gradients =
      tolerance.gradient * std::max(Largest(p.dout), Largest(p.dsum)) * (1 + std::max(u, state));
  const auto near = [&](const char* name, const Values& a, const Values& b, double allowed,
                        double relative) {
    ASSERT_EQ(a.size(), b.size()) << name;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] == b[i]) continue;  // -inf
      ASSERT_TRUE(std::abs(a[i] - b[i]) <= allowed + relative * std::abs(b[i]))
          << name << "[" << i << "]: got " << a[i] << ", want " << b[i] << ", allowed " << allowed;
    }
  };
  // delta = dout . out uses the stored out: one rounding per row, times its weight.
  const double stored = sizeof(T) == 2 ? 0x1p-8 : 0;
  // One rounding per channel, which the gradient of a log weight sums.
  const double sqrt_dim = std::sqrt(static_cast<double>(p.c.dim));
  near("out", got.out, want.out, means, stored);
  near("row_max", got.row_max, want.row_max, 0, 0);
  near("row_sum", got.row_sum, want.row_sum, 0, 2e-6);
  near("log_scale", got.log_scale, want.log_scale, 0, 0);
  near("mass", got.mass, want.mass, 0, 2e-6);
  near("sum", got.sum, want.sum, 2e-6 * u * (1 + Largest(want.mass)), 0);
  near("du", got.du, want.du, gradients, stored);
  const double of_delta = stored * Largest(p.dout) * (1 + u) * sqrt_dim;
  near("dlog_weight", got.dlog_weight, want.dlog_weight, gradients + of_delta, stored);
  near("dinitial_mass", got.dinitial_mass, want.dinitial_mass, gradients + of_delta, stored);
  near("dinitial_sum", got.dinitial_sum, want.dinitial_sum, gradients, 1e-5);
  near("dtail_log_weight", got.dtail_log_weight, want.dtail_log_weight, gradients + of_delta,
       stored);
  near("dtail_u", got.dtail_u, want.dtail_u, gradients, stored);
}

}  // namespace halflife::kernels::test
