// What layers that pool windows (leap, fastformer) looked at in a text: the shares that their pools
// gave to tokens, layer by layer, and which tokens had most.
//
//   for (const LayerExplanation& of_layer : ExplainLayers(model, tokens, slice))
//     for (const model::Explanation& pool : of_layer.pools)
//       Print(of_layer.layer, LargestTokens(pool.Importance().mean(-1)[0], 5));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/language_model.h"
#include "model/mixers/focus/explanation.h"

namespace halflife::eval {

struct LayerExplanation {
  int64_t layer = 0;
  std::vector<model::Explanation> pools;  // in the order of the layer's forward pass
};
// Returns what these layers looked at in one forward over tokens [B, T] int64, whole rows. Other
// layers are left out: Error kUsage where none is left.
std::vector<LayerExplanation> ExplainLayers(const model::LanguageModel& model,
                                            const at::Tensor& tokens,
                                            const model::SequenceSlice& slice);

struct TokenShare {
  int64_t token = 0;  // its place in the row
  double share = 0;
};
// The `count` largest of shares [T] that are not 0, falling; of equals the first comes first.
std::vector<TokenShare> LargestTokens(const at::Tensor& shares, int64_t count);

}  // namespace halflife::eval
