// Features of a chunk's tokens, and their backward, with tokens along the lanes. Each feature is a
// product of two rows of vectors.
#pragma once

#include "kernels/common/cpu/chunk_rows.h"
#include "kernels/polynomial_attention/features.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::polynomial {

// Computes the features of q with their weights, or those of k.
template <typename T>
class FeatureMap {
 public:
  FeatureMap(const FeatureLayout& layout, const FeatureWeights& weights)
      : layout_(layout),
        order0_(static_cast<T>(weights.order0)),
        order1_(static_cast<T>(weights.order1)),
        square_(static_cast<T>(weights.square)),
        pair_(static_cast<T>(weights.pair)) {}

  // Computes to [F, lanes] = w psi(x) for x [d, lanes]. The padding of a chunk (x = 0) still has
  // the feature of order 0.
  void Build(const Panels<T>& x, int lanes, const Panels<T>& to) const {
    for (int column = 0; column < lanes; column += kPanel) {
      if (layout_.has0) Fill(to.Row(0, column), order0_);
      for (int a = 0; a < layout_.dim && layout_.has1; ++a)
        Multiply(x.Row(a, column), order1_, to.Row(layout_.order1 + a, column));
      if (!layout_.has2) continue;
      T* feature = to.Row(layout_.order2, column);
      for (int a = 0; a < layout_.dim; ++a) {
        const T* const xa = x.Row(a, column);
        for (int j = 0; j < kPanel; j += kLanes<T>) {
          const Vec<T> left = At(xa + j);
          const Vec<T> scaled = left * pair_;
          T* target = feature + j;
          At(target) = left * left * square_;
          for (int b = a + 1; b < layout_.dim; ++b)
            At(target += kPanel) = scaled * At(x.Row(b, column) + j);
        }
        feature += (layout_.dim - a) * kPanel;
      }
    }
  }

  // Computes dx [d, lanes] from d(w psi) [F, lanes].
  void Backward(const Panels<T>& x, const Panels<T>& dfeatures, int lanes,
                const Panels<T>& dx) const {
    for (int column = 0; column < lanes; column += kPanel) {
      for (int a = 0; a < layout_.dim; ++a) {
        if (layout_.has1) {
          Multiply(dfeatures.Row(layout_.order1 + a, column), order1_, dx.Row(a, column));
        } else {
          Fill(dx.Row(a, column), T(0));
        }
      }
      if (!layout_.has2) continue;
      const T* feature = dfeatures.Row(layout_.order2, column);
      for (int a = 0; a < layout_.dim; ++a) {
        for (int j = 0; j < kPanel; j += kLanes<T>) {
          const T* source = feature + j;
          const Vec<T> left = At(x.Row(a, column) + j);
          Vec<T> sum = At(source) * left * (2 * square_);
          for (int b = a + 1; b < layout_.dim; ++b) {
            const Vec<T> gradient = At(source += kPanel) * pair_;
            sum += gradient * At(x.Row(b, column) + j);
            At(dx.Row(b, column) + j) += gradient * left;
          }
          At(dx.Row(a, column) + j) += sum;
        }
        feature += (layout_.dim - a) * kPanel;
      }
    }
  }

 private:
  static void Fill(T* to, T value) {
    for (int j = 0; j < kPanel; ++j) to[j] = value;
  }
  static void Multiply(const T* from, T factor, T* to) {
    for (int j = 0; j < kPanel; j += kLanes<T>) At(to + j) = At(from + j) * factor;
  }

  const FeatureLayout layout_;
  const T order0_, order1_, square_, pair_;
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::polynomial
