// How a model knows where a token stands: a table that is added to its embeddings, or a method of
// its attention layers (attention_positions.h). Mixers that decay or rotate by themselves need
// none. Adding one is a file here, a line in positions.inc and a message in the schema.
//
//   const auto positions = MakePositions(config.positions, {.prefix = "positions.", ...});
//   x = positions->AddTo(x, slice.positions);
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "model/part_context.h"
#include "model/positions/attention_positions.h"

namespace halflife::model {

class Positions {
 public:
  virtual ~Positions() = default;
  // x [..., D], positions [...] int64, counted in the token's document -> x with positions.
  virtual at::Tensor AddTo(const at::Tensor& x, const at::Tensor& positions) const;
  // Positions below it are known; 0: all are.
  virtual int64_t max_positions() const { return 0; }
  // Whether layers of attention tell positions by this; else by their own option rope_theta.
  virtual bool in_attention() const { return false; }
  // Whether AddTo follows the positions that rows are told in place of their own
  // (SequenceSlice::told). What is in_attention() says so layer by layer.
  virtual bool reads_told_positions() const { return !in_attention(); }
  // The method of one layer; null unless in_attention(). May declare parameters.
  virtual std::unique_ptr<AttentionPositions> OfLayer(const AttentionLayer& layer) const;
};

extern const PartKind kPositions;
using PositionsConfig = ConfigOf<kPositions>;

// Errors as MakePart's.
std::unique_ptr<Positions> MakePositions(const PositionsConfig& config, const PartContext& context);

}  // namespace halflife::model
