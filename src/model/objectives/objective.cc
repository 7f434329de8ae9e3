#include "model/objectives/objective.h"

#include "model/objectives/variants.h"

namespace halflife::model {
namespace {

std::vector<ObjectiveVariant> ObjectiveVariants() {
  return {
#define HL_OBJECTIVE(Make) Make(),
#include "model/objectives/objectives.inc"
#undef HL_OBJECTIVE
  };
}

}  // namespace

const PartKind kObjectives = {"objective", "next_token",
                              [] { return InfosOf(ObjectiveVariants()); }};

std::unique_ptr<Objective> MakeObjective(const ObjectiveConfig& config, int64_t vocab_size) {
  return MakePart(ObjectiveVariants(), config, {}, ObjectiveContext{vocab_size});
}

}  // namespace halflife::model
