#include "model/positions/positions.h"

#include "model/positions/variants.h"

namespace halflife::model {
namespace {

std::vector<PositionsVariant> PositionsVariants() {
  return {
#define HL_POSITIONS(Make) Make(),
#include "model/positions/positions.inc"
#undef HL_POSITIONS
  };
}

}  // namespace

const PartKind kPositions = {"positions", "none", [] { return InfosOf(PositionsVariants()); }};

at::Tensor Positions::AddTo(const at::Tensor& x, const at::Tensor&) const { return x; }

std::unique_ptr<AttentionPositions> Positions::OfLayer(const AttentionLayer&) const {
  return nullptr;
}

std::unique_ptr<Positions> MakePositions(const PositionsConfig& config,
                                         const PartContext& context) {
  return MakePart(PositionsVariants(), config, context.sizes, context);
}

}  // namespace halflife::model
