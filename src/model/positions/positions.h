// How a model encodes the position of a token: a table that is added to its embeddings, or a method
// of its attention layers (attention_positions.h). Mixers with their own decay or rotation need
// neither. To add a variant, add a class to this folder, a line to positions.inc and a message to
// the schema.
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
  // Adds positions to x [..., D]. `positions` [...] int64 counts from the start of the token's
  // document.
  virtual at::Tensor AddTo(const at::Tensor& x, const at::Tensor& positions) const;
  // Positions below this number are supported. 0: all positions.
  virtual int64_t max_positions() const { return 0; }
  // Returns true if attention layers encode positions with this method instead of their own option
  // rope_theta.
  virtual bool in_attention() const { return false; }
  // Returns true if AddTo uses the overridden position ids (SequenceSlice::given_position_ids). If
  // in_attention(), each layer's method answers this instead.
  virtual bool reads_position_ids() const { return !in_attention(); }
  // Returns the method for one layer, or null unless in_attention(). May declare parameters.
  virtual std::unique_ptr<AttentionPositions> OfLayer(const AttentionLayer& layer) const;
};

extern const PartKind kPositions;
using PositionsConfig = ConfigOf<kPositions>;

// Throws the errors of MakePart.
std::unique_ptr<Positions> MakePositions(const PositionsConfig& config, const PartContext& context);

}  // namespace halflife::model
