// Decoding: one token of one head. The state is updated in place, feature by feature.
#pragma once

#include "kernels/common/cpu/chunk_rows.h"
#include "kernels/polynomial_attention/cpu/kernels.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::polynomial {

template <typename T>
class StepHead {
 public:
  StepHead(const PolynomialAttentionStepArgs& args, int row, int head)
      : args_(args),
        layout_(args.head_dim, args.weights),
        weights_(QueryWeights(args.weights, args.scale)) {
    const int64_t index = (int64_t{1} * row * args.num_heads + head) * layout_.count;
    state_ = static_cast<T*>(args.state) + index * args.head_dim_v;
    norm_ = args.normalise ? static_cast<T*>(args.norm) + index : nullptr;
    token_ = {.token = 0, .row = row, .length = 1, .flags = 0, .padding = 0};
    Load(args.q, head, args.head_dim, q_);
    Load(args.k, head, args.head_dim, k_);
    Load(args.v, head, args.head_dim_v, v_);
  }

  void Run(int head) {
    const int d = args_.head_dim, V = args_.head_dim_v;
    if (layout_.has0) Feature(static_cast<T>(weights_.order0), T(1));
    const T order1 = static_cast<T>(weights_.order1);
    for (int a = 0; a < d && layout_.has1; ++a) Feature(order1 * q_[a], k_[a]);
    for (int a = 0; a < d && layout_.has2; ++a) {
      Feature(static_cast<T>(weights_.square) * q_[a] * q_[a], k_[a] * k_[a]);
      const T pair = static_cast<T>(weights_.pair) * q_[a];
      for (int b = a + 1; b < d; ++b) Feature(pair * q_[b], k_[a] * k_[b]);
    }
    const T denominator = args_.normalise ? z_ + static_cast<T>(args_.norm_eps) : T(1);
    const RowsOf out(args_.out, token_, head, args_.num_heads, args_.num_heads);
    WithStorage<T>(args_.out.dtype, [&](auto sample) {
      using S = decltype(sample);
      for (int j = 0; j < V; ++j) out.Row<S>(0)[j] = Narrow<S>(out_[j] / denominator);
    });
  }

 private:
  void Load(const TensorView& view, int head, int width, T* to) const {
    const RowsOf rows(view, token_, head, args_.num_heads, args_.num_heads);
    WithStorage<T>(view.dtype, [&](auto sample) {
      using S = decltype(sample);
      for (int j = 0; j < width; ++j) to[j] = Widen<T>(rows.Row<const S>(0)[j]);
    });
  }
  // Processes the next feature in the order of the layout: adds to the state, then reads it.
  HL_INLINE void Feature(T of_q, T of_k) {
    for (int j = 0; j < args_.head_dim_v; ++j) {
      state_[j] += of_k * v_[j];
      out_[j] += of_q * state_[j];
    }
    state_ += args_.head_dim_v;
    if (norm_ == nullptr) return;
    *norm_ += of_k;
    z_ += of_q * *norm_++;
  }

  const PolynomialAttentionStepArgs& args_;
  const FeatureLayout layout_;
  const FeatureWeights weights_;
  ChunkEntry token_ = {};
  T *state_ = nullptr, *norm_ = nullptr;  // for the next feature
  T q_[kMaxPolynomialDim], k_[kMaxPolynomialDim], v_[kMaxPolynomialValues];
  T out_[kMaxPolynomialValues] = {}, z_ = 0;
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::polynomial
