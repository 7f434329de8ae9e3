// Internal header of the position methods of attention: the template for their variants.
#pragma once

#include <memory>

#include "model/positions/variants.h"

namespace halflife::model {

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
