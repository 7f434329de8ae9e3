// Gradients to which several heads, sequences or segments contribute. The contributions are kept
// apart in the workspace and then summed in the order of their index, so that the bits do not
// depend on the order of the threads.
#pragma once

#include "kernels/decay_attention/cpu/kernels.h"

namespace halflife::kernels::cpu {

class SharedSums {
 public:
  SharedSums(const DecayAttentionGradArgs& grads, const BackwardLayout& layout);

  // Points the item's gradients at the caller's tensors or, for shared ones, at the workspace.
  void Direct(ReverseItem& item, int64_t segment, int segments) const;
  // Sums the contributions. Call it after all items have run.
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
