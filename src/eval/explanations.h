// Explains what layers that pool windows (leap, fastformer) looked at in a text: the weights of all
// tokens in their pools, layer by layer, and the tokens with the largest weights.
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
  std::vector<model::Explanation> pools;  // In the order of the layer's forward pass.
};
// Runs one forward pass over tokens [B, T] int64 (whole rows) and returns the explanation of every
// layer that supports it. Other layers are skipped. Throws kUsage if no layer supports it.
std::vector<LayerExplanation> ExplainLayers(const model::LanguageModel& model,
                                            const at::Tensor& tokens,
                                            const model::SequenceSlice& slice);

struct TokenShare {
  int64_t token = 0;  // Index in the row.
  double share = 0;
};
// Returns the `count` largest nonzero values of `shares` [T] in descending order. Equal values keep
// their order.
std::vector<TokenShare> LargestTokens(const at::Tensor& shares, int64_t count);

}  // namespace halflife::eval
