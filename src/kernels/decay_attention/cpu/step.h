// Decode: one token of one head. The state is updated in place, row by row of K.
#pragma once

#include "kernels/decay_attention/cpu/chunk.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

template <typename T>
void StepHead(const DecayAttentionStepArgs& args, int row, int head) {
  const ChunkEntry token = {.token = 0, .row = row, .length = 1, .flags = 0, .padding = 0};
  const auto rows = [&](const TensorView& view, int heads) {
    return RowsOf(view, token, head, args.num_heads, heads);
  };
  const int K = args.head_dim_k, V = args.head_dim_v;
  const int64_t slot = args.slots == nullptr ? row : args.slots[row];
  T out[kMaxHeadDimV];
  for (int j = 0; j < V; ++j) out[j] = 0;
  if (slot >= 0) {
    TensorView decay_view = args.log_decay;
    if (!IsPerToken(args.decay_kind)) decay_view.stride_b = 0;
    const T* log_decay = rows(decay_view, args.num_decay_heads).template Row<const T>(0);
    const T key_scale = args.key_scale.data == nullptr
                            ? T(1)
                            : *rows(args.key_scale, args.num_heads).template Row<const T>(0);
    T* state = static_cast<T*>(args.state) + (slot * args.num_heads + head) * K * V;
    T* norm = args.norm_kind == NormKind::kNone
                  ? nullptr
                  : static_cast<T*>(args.norm) + (slot * args.num_heads + head) * K;
    T denominator = static_cast<T>(args.norm_eps);
    WithStorage<T>(args.q.dtype, [&](auto sample) {
      using S = decltype(sample);
      const S* q = rows(args.q, args.num_q_heads).template Row<const S>(0);
      const S* k = rows(args.k, args.num_k_heads).template Row<const S>(0);
      const S* v = rows(args.v, args.num_v_heads).template Row<const S>(0);
      T values[kMaxHeadDimV];
      for (int j = 0; j < V; ++j) values[j] = Widen<T>(v[j]);
      for (int i = 0; i < K; ++i) {
        const T decay = args.decay_kind == DecayKind::kNone
                            ? T(1)
                            : __builtin_exp(log_decay[IsPerChannel(args.decay_kind) ? i : 0]);
        const T key = Widen<T>(k[i]) * key_scale;
        const T query = Widen<T>(q[i]) * static_cast<T>(args.scale);
        T* line = state + int64_t{1} * i * V;
        for (int j = 0; j < V; ++j) {
          const T after = decay * line[j] + key * values[j];
          line[j] = after;
          out[j] += query * after;
        }
        if (norm == nullptr) continue;
        norm[i] = decay * norm[i] + key;
        denominator += query * norm[i];
      }
    });
    if (norm != nullptr)
      for (int j = 0; j < V; ++j) out[j] /= denominator;
  }
  WithStorage<T>(args.out.dtype, [&](auto sample) {
    using S = decltype(sample);
    S* target = rows(args.out, args.num_heads).template Row<S>(0);
    for (int j = 0; j < V; ++j) target[j] = Narrow<S>(out[j]);
  });
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
