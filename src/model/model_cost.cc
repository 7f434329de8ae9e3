#include "model/model_cost.h"

#include <algorithm>

#include "model/blocks/block.h"
#include "model/vocabulary_layers.h"

namespace halflife::model {

FlopCount ModelCost::FlopsPerToken() const {
  FlopCount sum;
  for (int64_t layer = -1; layer <= model_.config().num_layers; ++layer) sum += FlopsOfLayer(layer);
  return sum;
}

FlopCount ModelCost::FlopsOfLayer(int64_t layer) const {
  if (layer < 0) return {};
  if (IsBlock(layer)) {
    const Block& block = model_.block(layer);
    FlopCount sum = block.mixer().FlopsPerToken(seq_len_);
    return sum += block.channel_mixer().FlopsPerToken();
  }
  const ModelConfig& config = model_.config();
  const auto dim = static_cast<double>(config.model_dim);
  if (model_.pooler() == nullptr)
    return {.matmul = 2 * dim * static_cast<double>(config.vocab_size)};
  const auto num_classes = static_cast<double>(model_.objective().classifier()->num_classes);
  // For a row that is one document.
  return {.matmul = (model_.pooler()->FlopsPerDocument() + 2 * dim * num_classes) /
                    static_cast<double>(seq_len_)};
}

FlopCount ModelCost::RecomputedFlopsOfLayer(int64_t layer, Recompute recompute) const {
  if (!IsBlock(layer) || recompute == Recompute::kNone) return {};
  if (recompute == Recompute::kBlock) return FlopsOfLayer(layer);
  return model_.block(layer).mixer().FlopsPerToken(seq_len_);
}

double ModelCost::ActivationBytesPerToken(int64_t bytes_per_element, Recompute recompute) const {
  const ModelConfig& config = model_.config();
  // Recomputation keeps inputs instead: for a block its residual stream (a sum and a pending
  // branch), for a mixer its input. The extra layer (+ 1) is for the gradients of the inputs while
  // a layer is recomputed.
  const double inputs = recompute == Recompute::kBlock ? 2 : recompute == Recompute::kMixer ? 1 : 0;
  const double of_inputs =
      inputs * static_cast<double>(config.model_dim) * static_cast<double>(bytes_per_element);
  double kept = static_cast<double>(config.num_layers + 1) * of_inputs, again = 0;
  for (int64_t layer = -1; layer <= config.num_layers; ++layer) {
    const double once = RecomputedBytesOfLayer(layer, bytes_per_element, recompute);
    kept += ActivationBytesOfLayer(layer, bytes_per_element) - once;
    again = std::max(again, once);
  }
  return kept + again;
}

double ModelCost::MixerBytesPerToken(int64_t layer, int64_t bytes_per_element) const {
  const Mixer& mixer = model_.block(layer).mixer();
  return mixer.ActivationBytesPerToken(seq_len_, bytes_per_element) +
         (on_gpu_ ? mixer.GpuActivationBytesPerToken(seq_len_, bytes_per_element) : 0);
}

double ModelCost::ActivationBytesOfLayer(int64_t layer, int64_t bytes_per_element) const {
  const auto bytes = static_cast<double>(bytes_per_element);
  // The embedded token, or the last hidden vector and its scaled copy if there is one.
  if (!IsBlock(layer)) {
    const double vectors = layer >= 0 && model_.head().scales_hidden() ? 2 : 1;
    return vectors * static_cast<double>(model_.config().model_dim) * bytes;
  }
  const Block& block = model_.block(layer);
  return (block.ActivationsPerToken() + block.channel_mixer().ActivationsPerToken()) * bytes +
         MixerBytesPerToken(layer, bytes_per_element);
}

double ModelCost::RecomputedBytesOfLayer(int64_t layer, int64_t bytes_per_element,
                                         Recompute recompute) const {
  if (!IsBlock(layer) || recompute == Recompute::kNone) return 0;
  if (recompute == Recompute::kBlock) return ActivationBytesOfLayer(layer, bytes_per_element);
  return MixerBytesPerToken(layer, bytes_per_element);
}

double ModelCost::LossBytes(int64_t batch, ops::CrossEntropyStorage storage) const {
  const ModelConfig& config = model_.config();
  if (model_.pooler() == nullptr)
    return ops::LinearCrossEntropyBytes(batch * seq_len_, config.vocab_size, config.model_dim,
                                        storage);
  return ops::LinearCrossEntropyBytes(batch, model_.objective().classifier()->num_classes,
                                      config.model_dim, storage);
}

double ModelCost::StateBytesPerRow(int64_t bytes_per_element) const {
  double sum = 0;
  for (int64_t layer = 0; layer < model_.config().num_layers; ++layer) {
    for (const StateTensor& tensor : model_.block(layer).mixer().traits().state) {
      if (tensor.grows()) continue;
      double count = 1;
      for (const int64_t size : tensor.shape) count *= static_cast<double>(size);
      sum += count * static_cast<double>(tensor.compute_dtype ? bytes_per_element : 4);
    }
  }
  return sum;
}

double ModelCost::WorkspaceBytes(const GpuBatch& batch) const {
  double most = 0;
  for (int64_t layer = 0; layer < model_.config().num_layers; ++layer)
    most = std::max(most, model_.block(layer).mixer().WorkspaceBytes(batch));
  return most;
}

}  // namespace halflife::model
