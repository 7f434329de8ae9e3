// Internal header of the objectives: declares the functions that return their variants.
#pragma once

#include "model/objectives/objective.h"

namespace halflife::model {

using ObjectiveVariant = Variant<Objective, ObjectiveContext>;

#define HL_OBJECTIVE(Make) ObjectiveVariant Make();
#include "model/objectives/objectives.inc"
#undef HL_OBJECTIVE

}  // namespace halflife::model
