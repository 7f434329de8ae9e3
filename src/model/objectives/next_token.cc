// Each token predicts the next one. Batches already have these labels.
#include "model/objectives/variants.h"

namespace halflife::model {
namespace {

struct NextTokenOptions : OptionsOf<NextTokenOptions> {};

class NextToken : public Objective {
 public:
  NextToken(const NextTokenOptions&, const ObjectiveContext&) {}
  void Label(const LabelledRows&) const override {}
  bool predicts_next_token() const override { return true; }
};

}  // namespace

ObjectiveVariant NextTokenVariant() {
  return VariantOf<NextTokenOptions, NextToken, Objective, ObjectiveContext>("next_token");
}

}  // namespace halflife::model
