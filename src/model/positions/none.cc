// None: the mixers see order themselves.
#include "model/positions/variants.h"

namespace halflife::model {
namespace {

struct NoPositionsOptions : OptionsOf<NoPositionsOptions> {};

class NoPositions : public Positions {
 public:
  NoPositions(const NoPositionsOptions&, const PartContext&) {}
};

}  // namespace

PositionsVariant NoPositionsVariant() {
  return VariantOf<NoPositionsOptions, NoPositions, Positions, PartContext>("none");
}

}  // namespace halflife::model
