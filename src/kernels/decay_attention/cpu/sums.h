// Gradients that several heads, sequences or segments add to: kept apart in the workspace, then
// summed in the order of their index, so that no bit depends on which thread was first.
#pragma once

#include "kernels/decay_attention/cpu/kernels.h"

namespace halflife::kernels::cpu {

class SharedSums {
 public:
  SharedSums(const DecayAttentionGradArgs& grads, const BackwardLayout& layout);

  // Points the item's gradients at the caller's tensors, or at the workspace where they are shared.
  void Direct(ReverseItem& item, int64_t segment, int segments) const;
  // Once all items are done.
  void Reduce(int segments) const;

 private:
  struct Shared {
    TensorView partial;  // [B, T, H, width]
    TensorView sum;      // [B, T, heads, width]
    int heads = 0, width = 0;
  };
  void Add(const TensorView& sum, int heads, int width, size_t offset, TensorView& direct);
  void ReduceHeads(const Shared& shared) const;
  void ReduceConstantDecay(int segments) const;
  bool constant_decay_wanted() const;
  int decays() const;
  double* DLambda(int64_t piece) const;

  const DecayAttentionGradArgs& grads_;
  const DecayAttentionArgs& args_;
  const BackwardLayout layout_;
  TensorView dq_, dk_, dv_, dlog_decay_;
  Shared shared_[4];
  int num_shared_ = 0;
};

}  // namespace halflife::kernels::cpu
