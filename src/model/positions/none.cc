// No table: the mixers see order themselves.
#include "model/positions/variants.h"

namespace halflife::model {
namespace {

struct NoPositionsOptions : OptionsOf<NoPositionsOptions> {};

class NoPositions : public PositionTable {
 public:
  NoPositions(const NoPositionsOptions&, const PartContext&) {}
  at::Tensor operator()(const at::Tensor& x, const at::Tensor&) const override { return x; }
};

}  // namespace

PositionTableVariant NoPositionsVariant() {
  return VariantOf<NoPositionsOptions, NoPositions, PositionTable, PartContext>("none");
}

}  // namespace halflife::model
