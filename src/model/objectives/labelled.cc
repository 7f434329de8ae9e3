// Trains on labels from the dataset, which stores them with the tokens. Only tokens with a label
// have a loss.
#include "model/objectives/variants.h"

namespace halflife::model {
namespace {

struct LabelledOptions : OptionsOf<LabelledOptions> {};

class Labelled : public Objective {
 public:
  Labelled(const LabelledOptions&, const ObjectiveContext&) {}
  void Label(const LabelledRows&) const override {}
  bool takes_labels_of_data() const override { return true; }
};

}  // namespace

ObjectiveVariant LabelledVariant() {
  return VariantOf<LabelledOptions, Labelled, Objective, ObjectiveContext>("labelled");
}

}  // namespace halflife::model
