// Positions that training tells a model in place of 0, 1, 2, ...: short rows then show it distances
// and places of texts that are longer than they are. Drawn for each document of a row by the run's
// seed and the row's sample number, so that neither a resume nor the mesh changes any.
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
  // plain: the tokens' own. skipwise (PoSE, Zhu et al., 2024): a document is cut in `chunks` at
  // random, and each begins a random skip behind the end of the one before. randomised (Ruoss et
  // al., 2023): a random subset of [0, length), in ascending order.
  std::string kind = "plain";
  int64_t length = 0;  // positions are below
  int64_t chunks = 2;  // of skipwise
  bool plain() const { return kind == "plain"; }
};

// Of a document of num_tokens <= length: [num_tokens], ascending strictly, below length. Those of
// skipwise begin with 0. Fewer tokens than chunks are as many chunks.
std::vector<int64_t> DrawPositions(const RowPositionsConfig& config, int64_t num_tokens,
                                   RandomWords words);

// Of the rows of a batch: [B, T]; rows of padding have plain ones.
std::vector<int64_t> TellPositions(const RowPositionsConfig& config, uint64_t seed,
                                   const Batch& batch);

}  // namespace halflife::data
