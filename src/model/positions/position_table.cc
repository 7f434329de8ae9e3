#include "model/positions/position_table.h"

#include "model/positions/variants.h"

namespace halflife::model {
namespace {

std::vector<PositionTableVariant> Variants() {
  return {
#define HL_POSITION_TABLE(Make) Make(),
#include "model/positions/positions.inc"
#undef HL_POSITION_TABLE
  };
}

}  // namespace

const PartKind kPositionTables = {"positions", "none", [] { return InfosOf(Variants()); }};

std::unique_ptr<PositionTable> MakePositionTable(const PositionTableConfig& config,
                                                 const PartContext& context) {
  return MakePart(Variants(), config, context.sizes, context);
}

}  // namespace halflife::model
