// Inner header: the backward of a normalised output, over centred values, then over the column of
// ones; see centre.h.
//
//   CentredBackward(grads, plan, layout, stream).Run();
#pragma once

#include "kernels/decay_attention/args.h"
#include "kernels/decay_attention/cuda/workspace.h"

namespace halflife::kernels::cuda {

// All references are borrowed, until Run returns.
class CentredBackward {
 public:
  CentredBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                  const BackwardLayout& layout, cudaStream_t stream)
      : grads_(grads),
        plan_(plan),
        layout_(layout),
        stream_(stream),
        mean_(Region<float>(layout.normaliser.centre.mean)) {}

  // Launches both scans; their parts of the gradients are where `layout` says.
  void Run() const;

 private:
  bool has_tokens() const { return grads_.forward.num_chunks > 0; }  // else there is no mean
  const CentreLayout& centre() const { return layout_.normaliser.centre; }
  template <typename T>
  T* Region(size_t offset) const {
    return At<T>(grads_.forward.workspace, offset);
  }

  // Returns [slices of V, B, T, H, K], the part of dq.
  const float* RunOverValues() const;
  void RunOverOnes(const float* dq) const;

  // That of the sum of keys is found by it, wanted or not.
  void* dinitial_state() const;
  void Shift(const void* states, const void* norms, float sign, float* shifted) const;

  const DecayAttentionGradArgs& grads_;
  const DecayAttentionPlan& plan_;
  const BackwardLayout& layout_;
  const cudaStream_t stream_;
  float* const mean_;
};

}  // namespace halflife::kernels::cuda
