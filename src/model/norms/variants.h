// Internal header of the norms: declares the functions that return their variants.
#pragma once

#include "model/norms/norm.h"

namespace halflife::model {

using NormVariant = Variant<Norm, NormContext>;

#define HL_NORM(Make) NormVariant Make();
#include "model/norms/norms.inc"
#undef HL_NORM

}  // namespace halflife::model
