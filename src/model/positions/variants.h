// Inner header of the position tables: the functions that give their variants.
#pragma once

#include "model/positions/position_table.h"

namespace halflife::model {

using PositionTableVariant = Variant<PositionTable, PartContext>;

#define HL_POSITION_TABLE(Make) PositionTableVariant Make();
#include "model/positions/positions.inc"
#undef HL_POSITION_TABLE

}  // namespace halflife::model
