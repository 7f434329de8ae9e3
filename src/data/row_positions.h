// Draws position ids for training rows that replace 0, 1, 2, ... Short rows then show the model
// distances and positions of longer texts. The position ids of each document depend only on the
// run's seed and the row's sample number, so neither a resume nor the mesh changes them.
//
//   const RowPositionsConfig config = {.kind = "skipwise", .length = 2048, .chunks = 2};
//   const std::vector<int64_t> positions = DrawPositions(config, /*num_tokens=*/512, words);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/random_words.h"

namespace halflife::data {

struct RowPositionsConfig {
  // plain: 0, 1, 2, ... skipwise (PoSE, Zhu et al., 2024): a document is split at random into
  // `chunks`, and each chunk starts after a random skip from the end of the previous one.
  // randomised (Ruoss et al., 2023): a random subset of [0, length), in ascending order.
  std::string kind = "plain";
  int64_t length = 0;  // exclusive upper bound of the position ids
  int64_t chunks = 2;  // used by skipwise
  bool plain() const { return kind == "plain"; }
};

// Returns the position ids of a document, [num_tokens], strictly ascending and below config.length.
// num_tokens must be at most config.length. With skipwise they begin with 0, and a document with
// fewer tokens than chunks has as many chunks as tokens.
std::vector<int64_t> DrawPositions(const RowPositionsConfig& config, int64_t num_tokens,
                                   RandomWords words);

// Returns the position ids of the rows of a batch, [B, T]. Padding rows have plain ones.
std::vector<int64_t> AssignPositionIds(const RowPositionsConfig& config, uint64_t seed,
                                       const Batch& batch);

}  // namespace halflife::data
