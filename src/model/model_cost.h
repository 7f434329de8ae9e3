// What a model costs, for planning and for the share of a GPU's peak: sums of what its parts
// declare (cost.h).
//
//   const ModelCost cost(model, 2048);
//   const double flops = 3 * cost.FlopsPerToken().matmul;  // forward and backward
//
// Layers are counted as LanguageModel::LayerOf does: -1 the embedding, num_layers the head.
#pragma once

#include <cstdint>

#include "kernels/cross_entropy/linear_cross_entropy.h"
#include "model/cost.h"
#include "model/language_model.h"

namespace halflife::model {

class ModelCost {
 public:
  // Counts for rows of `seq_len` tokens, activations for the CPU's kernels or a GPU's. `model` is
  // borrowed; its parameters need not be bound.
  ModelCost(const LanguageModel& model, int64_t seq_len, bool on_gpu = false)
      : model_(model), seq_len_(seq_len), on_gpu_(on_gpu) {}

  // The operations of a forward; the head is included, the embedding's lookup is not.
  FlopCount FlopsPerToken() const;
  FlopCount FlopsOfLayer(int64_t layer) const;
  // What of these backward has a second time.
  FlopCount RecomputedFlopsOfLayer(int64_t layer, Recompute recompute) const;

  // The most that a micro-batch holds of a token, in bytes: what all layers keep for backward, and
  // what one layer at a time computes again.
  double ActivationBytesPerToken(int64_t bytes_per_element,
                                 Recompute recompute = Recompute::kNone) const;
  double ActivationBytesOfLayer(int64_t layer, int64_t bytes_per_element) const;
  double RecomputedBytesOfLayer(int64_t layer, int64_t bytes_per_element,
                                Recompute recompute) const;
  // The most that the head holds at once while its loss over `batch` rows is differentiated.
  double LossBytes(int64_t batch, kernels::CrossEntropyStorage storage) const;
  // The mixers' states that do not grow, all layers together: what a rank that holds a slice of a
  // row keeps of the tokens before it until backward.
  double StateBytesPerRow(int64_t bytes_per_element) const;
  // The most that a kernel of any layer borrows on a GPU: they take turns, and the allocator hands
  // the same memory to the next. That of the head is in LossBytes.
  double WorkspaceBytes(const GpuBatch& batch) const;

 private:
  bool IsBlock(int64_t layer) const { return layer >= 0 && layer < model_.config().num_layers; }
  double MixerBytesPerToken(int64_t layer, int64_t bytes_per_element) const;

  const LanguageModel& model_;
  int64_t seq_len_;
  bool on_gpu_;
};

}  // namespace halflife::model
