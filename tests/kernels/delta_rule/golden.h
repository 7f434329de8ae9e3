// Golden values of the delta rule in fp64, from an implementation in another language. The inputs
// come from a generator that any language can reproduce: s = (1103515245 s + 12345) mod 2^31 from
// the seed, value s / 2^30 - 1, row-major, in the order of the assignments in MakeGoldenProblem.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/delta_rule/delta_rule_reference.h"

namespace halflife::kernels::test {

struct Golden {
  uint64_t seed;
  DeltaDecay decay;
  double beta_scale;                // beta = beta_scale sigmoid(2 x)
  std::vector<double> out_last[2];  // out[6], of value heads 0 and 1
  double state_squares;             // the sum of squares of the final states
  std::vector<double> state_row;    // final state [head 0, channel 0]
  std::vector<double> dq, dk;       // of token 0
  std::vector<double> dv;           // of token 0, head 0
  std::vector<double> dbeta;        // of token 0
  std::vector<double> dlog_decay;   // of token 0; with a decay per channel, of head 0
  std::vector<double> dinitial;     // [head 0, channel 0]
  std::vector<double> transition;   // M [head 0, channel 0]
  double transition_squares;        // the sum of squares of M of both heads
};

// DeltaNet, Gated DeltaNet with beta up to 1 and up to 2, KDA. T 7, H 1, HV 2, K 3, V 2.
inline std::vector<Golden> GoldenColumns() {
  return {{.seed = 100,
           .decay = DeltaDecay::kNone,
           .beta_scale = 1,
           .out_last = {{-0.144047510, -0.156787812}, {0.119430536, 0.038056531}},
           .state_squares = 1.550702159,
           .state_row = {-0.026714155, -0.194130641},
           .dq = {0.172953629, -0.221744324, -0.141116461},
           .dk = {-0.139380147, -0.328028284, -0.178878912},
           .dv = {0.404529938, 0.464256130},
           .dbeta = {-0.400981119, -0.148375478},
           .dlog_decay = {},
           .dinitial = {0.145728872, 0.243939409},
           .transition = {0.085895403, 0.032310655, -0.054511834},
           .transition_squares = 0.660101352},
          {.seed = 101,
           .decay = DeltaDecay::kPerToken,
           .beta_scale = 1,
           .out_last = {{0.236130208, 0.174555229}, {-0.027539034, -0.021926949}},
           .state_squares = 0.324611661,
           .state_row = {-0.317842194, -0.182383013},
           .dq = {-0.148141390, 0.053126315, 0.079479285},
           .dk = {-0.051669773, 0.040119985, 0.036723391},
           .dv = {0.042622681, 0.179586176},
           .dbeta = {-0.037660249, 0.061012592},
           .dlog_decay = {-0.092686325, -0.005740612},
           .dinitial = {0.029161654, -0.216661654},
           .transition = {0.002589870, 0.001106896, 0.001197850},
           .transition_squares = 0.000425355},
          {.seed = 102,
           .decay = DeltaDecay::kPerToken,
           .beta_scale = 2,
           .out_last = {{-0.006319268, -0.312113897}, {-0.049419256, 0.096871738}},
           .state_squares = 0.786419887,
           .state_row = {0.259067380, 0.151593007},
           .dq = {0.401429391, -0.242154828, -0.160369369},
           .dk = {-0.438976156, 0.343449628, -0.356324639},
           .dv = {0.037197398, 0.290679540},
           .dbeta = {0.026406569, 0.003878567},
           .dlog_decay = {-0.012237185, 0.044546627},
           .dinitial = {-0.097467098, 0.128729903},
           .transition = {0.003823095, 0.003747968, 0.009894807},
           .transition_squares = 0.000783278},
          {.seed = 103,
           .decay = DeltaDecay::kPerTokenChannel,
           .beta_scale = 1,
           .out_last = {{-0.010501819, -0.014841370}, {-0.150650529, 0.155966172}},
           .state_squares = 1.624063574,
           .state_row = {0.292845144, 0.471753357},
           .dq = {-0.219009268, 0.171471782, -0.024138207},
           .dk = {-0.115202627, 0.266824962, 0.042872175},
           .dv = {0.243668396, 0.155778828},
           .dbeta = {0.689287713, -0.369191261},
           .dlog_decay = {-0.015811137, -0.097676963, -0.059281234},
           .dinitial = {-0.237798289, -0.102257696},
           .transition = {0.015880630, -0.003885101, -0.003842040},
           .transition_squares = 0.001404172}};
}

// Divides each row of `width` values by sqrt(its sum of squares + 1e-6).
inline void NormaliseRows(std::vector<double>& x, int64_t width) {
  for (size_t row = 0; row < x.size(); row += width) {
    double squares = 1e-6;
    for (int64_t i = 0; i < width; ++i) squares += x[row + i] * x[row + i];
    for (int64_t i = 0; i < width; ++i) x[row + i] /= std::sqrt(squares);
  }
}

inline DeltaReferenceProblem MakeGoldenProblem(const Golden& golden) {
  constexpr int64_t T = 7, HV = 2, K = 3, V = 2;
  uint64_t state = golden.seed;
  const auto draw = [&](int64_t count) {
    std::vector<double> values(count);
    for (double& x : values) {
      state = (1103515245 * state + 12345) % (uint64_t{1} << 31);
      x = static_cast<double>(state) / (1 << 30) - 1;
    }
    return values;
  };
  DeltaReferenceProblem p = {.seq_len = T,
                             .num_heads = 1,
                             .num_value_heads = HV,
                             .head_dim_k = K,
                             .head_dim_v = V,
                             .decay = golden.decay,
                             .scale = 1 / std::sqrt(3.0)};
  p.q = draw(T * K);
  p.k = draw(T * K);
  NormaliseRows(p.q, K);
  NormaliseRows(p.k, K);
  p.v = draw(T * HV * V);
  p.beta = draw(T * HV);
  for (double& x : p.beta) x = golden.beta_scale / (1 + std::exp(-2 * x));
  if (golden.decay != DeltaDecay::kNone)
    p.log_decay = draw(T * HV * (golden.decay == DeltaDecay::kPerToken ? 1 : K));
  for (double& x : p.log_decay) x = -std::log1p(std::exp(2 * x - 1));
  p.initial_state = draw(HV * K * V);
  for (double& x : p.initial_state) x /= 2;
  p.dout = draw(T * HV * V);
  p.dfinal_state = draw(HV * K * V);
  return p;
}

}  // namespace halflife::kernels::test
