// Internal header of the position variants: declares the functions that return them.
#pragma once

#include "model/positions/positions.h"

namespace halflife::model {

using PositionsVariant = Variant<Positions, PartContext>;

#define HL_POSITIONS(Make) PositionsVariant Make();
#include "model/positions/positions.inc"
#undef HL_POSITIONS

}  // namespace halflife::model
