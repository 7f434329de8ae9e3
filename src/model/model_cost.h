// The cost of a model: sums of the costs that its parts declare (cost.h). Used for planning and for
// the utilisation of a GPU's peak performance.
//
//   const ModelCost cost(model, 2048);
//   const double flops = 3 * cost.FlopsPerToken().matmul;  // forward and backward
//
// Layers are numbered as in LanguageModel::LayerOf: -1 is the embedding, num_layers the head.
#pragma once

#include <cstdint>

#include "model/cost.h"
#include "model/language_model.h"
#include "ops/cross_entropy/linear_cross_entropy.h"

namespace halflife::model {

class ModelCost {
 public:
  // Counts for rows of `seq_len` tokens. Activations are those of the CPU kernels, or of the GPU
  // kernels if `on_gpu`. `model` is borrowed; its parameters need not be bound.
  ModelCost(const LanguageModel& model, int64_t seq_len, bool on_gpu = false)
      : model_(model), seq_len_(seq_len), on_gpu_(on_gpu) {}

  // Returns the operations of a forward pass, including the head but not the embedding's lookup.
  FlopCount FlopsPerToken() const;
  FlopCount FlopsOfLayer(int64_t layer) const;
  // Returns the part of these operations that backward repeats.
  FlopCount RecomputedFlopsOfLayer(int64_t layer, Recompute recompute) const;

  // Returns the peak activation bytes of a micro-batch per token: everything that all layers keep
  // for backward, plus what is recomputed for one layer at a time.
  double ActivationBytesPerToken(int64_t bytes_per_element,
                                 Recompute recompute = Recompute::kNone) const;
  double ActivationBytesOfLayer(int64_t layer, int64_t bytes_per_element) const;
  double RecomputedBytesOfLayer(int64_t layer, int64_t bytes_per_element,
                                Recompute recompute) const;
  // Returns the peak bytes of the head while the loss of `batch` rows is differentiated.
  double LossBytes(int64_t batch, ops::CrossEntropyStorage storage) const;
  // Returns the bytes per row of all mixer states that do not grow. A rank that holds a slice of a
  // row keeps them for the preceding tokens until backward.
  double StateBytesPerRow(int64_t bytes_per_element) const;
  // Peak workspace bytes of the kernels of any layer on a GPU. Kernels run one after another, so
  // the allocator reuses the same memory. The workspace of the head is part of LossBytes.
  double WorkspaceBytes(const GpuBatch& batch) const;

 private:
  bool IsBlock(int64_t layer) const { return layer >= 0 && layer < model_.config().num_layers; }
  double MixerBytesPerToken(int64_t layer, int64_t bytes_per_element) const;

  const LanguageModel& model_;
  int64_t seq_len_;
  bool on_gpu_;
};

}  // namespace halflife::model
