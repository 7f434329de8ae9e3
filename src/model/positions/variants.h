// Internal header of the position variants: declares the functions that return them, and the
// template for those that attention layers encode.
#pragma once

#include <memory>

#include "model/positions/positions.h"

namespace halflife::model {

using PositionsVariant = Variant<Positions, PartContext>;

#define HL_POSITIONS(Make) PositionsVariant Make();
#include "model/positions/positions.inc"
#undef HL_POSITIONS

// Positions that each attention layer encodes with a `Method`, which is made from the options and
// the layer.
template <typename Options, typename Method>
class PositionsInAttention : public Positions {
 public:
  PositionsInAttention(const Options& options, const PartContext&) : options_(options) {}
  bool in_attention() const override { return true; }
  std::unique_ptr<AttentionPositions> OfLayer(const AttentionLayer& layer) const override {
    return std::make_unique<Method>(options_, layer);
  }

 private:
  Options options_;
};

template <typename Options, typename Method>
PositionsVariant AttentionVariantOf(const char* name) {
  return VariantOf<Options, PositionsInAttention<Options, Method>, Positions, PartContext>(name);
}

}  // namespace halflife::model
