// Inner header: the backward of a turn's normalised outputs, over centred values, then over the
// column of ones; see centre.h.
//
//   CentredBackward(grads, plan, layout, turn, stream).Run();
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::cuda {

// All references are borrowed, until Run returns.
class CentredBackward {
 public:
  CentredBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                  const BackwardLayout& layout, const Turn& turn, cudaStream_t stream)
      : grads_(grads),
        plan_(plan),
        layout_(layout),
        turn_(turn),
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

  // Elements of [batch, T, heads, width], [batch, heads, width] and [num_sequences, H, width]
  // before the turn's.
  int64_t TokensBefore(int heads, int width) const;
  int64_t RowsBefore(int heads, int width) const;
  int64_t StatesBefore(int64_t width) const;

  void Centre() const;
  void RunOverValues() const;
  void RunOverOnes() const;

  // That of the sum of keys is found by it, wanted or not.
  void* dinitial_state() const;
  // Of the turn's sequences, which the pointers count from the batch's first.
  void Shift(const void* states, const void* norms, float sign, float* shifted) const;

  const DecayAttentionGradArgs& grads_;
  const DecayAttentionPlan& plan_;
  const BackwardLayout& layout_;
  const Turn turn_;
  const cudaStream_t stream_;
  float* const mean_;  // of the turn's rows
};

}  // namespace halflife::kernels::cuda
