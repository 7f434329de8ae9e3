// The backward of a normalised output, for one batch tile: first a scan over values minus their
// mean, then a scan for the normaliser. mean_subtraction.h derives the formulas. Internal header.
//
//   NormalisedBackward(grads, plan, layout, batch_tile, stream).Run();
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::cuda {

// All references are borrowed until Run returns.
class NormalisedBackward {
 public:
  NormalisedBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                     const BackwardLayout& layout, const BatchTile& batch_tile, cudaStream_t stream)
      : grads_(grads),
        plan_(plan),
        layout_(layout),
        batch_tile_(batch_tile),
        stream_(stream),
        mean_(Region<float>(layout.normaliser.value_mean.mean)) {}

  // Launches both scans. Their parts of the gradients are written to the regions that `layout`
  // names.
  void Run() const;

 private:
  // without tokens there is no mean
  bool has_tokens() const { return grads_.forward.num_chunks > 0; }
  const ValueMeanLayout& value_mean() const { return layout_.normaliser.value_mean; }
  template <typename T>
  T* Region(size_t offset) const {
    return At<T>(grads_.forward.workspace, offset);
  }

  // The number of elements before the batch tile in [batch, T, heads, width], [batch, heads, width]
  // and [num_sequences, H, width].
  int64_t TokensBefore(int heads, int width) const;
  int64_t RowsBefore(int heads, int width) const;
  int64_t StatesBefore(int64_t width) const;

  void SubtractMean() const;
  void RunOverValues() const;
  void RunOverNormaliser() const;

  // The gradient of the initial state. The normaliser's gradient needs it even if the caller does
  // not.
  void* dinitial_state() const;
  // Computes `shifted` for the sequences of the batch tile. The pointers refer to the batch's first
  // sequence.
  void Shift(const void* states, const void* norms, float sign, float* shifted) const;

  const DecayAttentionGradArgs& grads_;
  const DecayAttentionPlan& plan_;
  const BackwardLayout& layout_;
  const BatchTile batch_tile_;
  const cudaStream_t stream_;
  float* const mean_;  // for the rows of the batch tile
};

}  // namespace halflife::kernels::cuda
