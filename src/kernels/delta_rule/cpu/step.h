// Decode: one token of one value head. The state is updated in place, row by row of K.
#pragma once

#include "kernels/delta_rule/cpu/chunk.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta {

template <typename T>
void StepHead(const DeltaRuleStepArgs& args, int row, int head) {
  const ChunkEntry token = {.token = 0, .row = row, .length = 1, .flags = 0, .padding = 0};
  const int H = args.num_heads, HV = args.num_value_heads;
  const int K = args.head_dim_k, V = args.head_dim_v;
  const T* log_decay = args.decay == DeltaDecay::kNone
                           ? nullptr
                           : RowsOf(args.log_decay, token, head, HV, HV).template Row<const T>(0);
  const T beta = *RowsOf(args.beta, token, head, HV, HV).template Row<const T>(0);
  T* state = static_cast<T*>(args.state) + (int64_t{1} * row * HV + head) * K * V;
  T out[kDeltaMaxHeadDimV], u[kDeltaMaxHeadDimV];
  WithStorage<T>(args.q.dtype, [&](auto sample) {
    using S = decltype(sample);
    const S* q = RowsOf(args.q, token, head, HV, H).template Row<const S>(0);
    const S* k = RowsOf(args.k, token, head, HV, H).template Row<const S>(0);
    const S* v = RowsOf(args.v, token, head, HV, HV).template Row<const S>(0);
    for (int j = 0; j < V; ++j) out[j] = 0, u[j] = Widen<T>(v[j]);
    for (int i = 0; i < K; ++i) {
      T decay = 1;
      if (log_decay != nullptr)
        decay = static_cast<T>(
            __builtin_exp(log_decay[args.decay == DeltaDecay::kPerTokenChannel ? i : 0]));
      const T key = Widen<T>(k[i]);
      T* line = state + int64_t{1} * i * V;
      for (int j = 0; j < V; ++j) {
        line[j] *= decay;
        u[j] -= key * line[j];
      }
    }
    for (int j = 0; j < V; ++j) u[j] *= beta;
    for (int i = 0; i < K; ++i) {
      const T key = Widen<T>(k[i]), query = Widen<T>(q[i]) * static_cast<T>(args.scale);
      T* line = state + int64_t{1} * i * V;
      for (int j = 0; j < V; ++j) {
        line[j] += key * u[j];
        out[j] += query * line[j];
      }
    }
    S* target = RowsOf(args.out, token, head, HV, HV).template Row<S>(0);
    for (int j = 0; j < V; ++j) target[j] = Narrow<S>(out[j]);
  });
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta
