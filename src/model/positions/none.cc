// No positions: the mixers themselves depend on the order of tokens.
#include "model/positions/variants.h"

namespace halflife::model {
namespace {

struct NoPositionsOptions : OptionsOf<NoPositionsOptions> {};

class NoPositions : public Positions {
 public:
  NoPositions(const NoPositionsOptions&, const PartContext&) {}
  bool reads_told_positions() const override { return false; }
};

}  // namespace

PositionsVariant NoPositionsVariant() {
  return VariantOf<NoPositionsOptions, NoPositions, Positions, PartContext>("none");
}

}  // namespace halflife::model
