// Document classification: the dataset stores the class of a document as the label of its first
// token.
#include "model/objectives/variants.h"

namespace halflife::model {
namespace {

struct ClassificationOptions : OptionsOf<ClassificationOptions> {
  ClassifierOptions classifier;
  std::vector<Option> Fields() override {
    return {{"num_classes", &classifier.num_classes, {.min = 2, .max = INT32_MAX}},
            {"pooling", &classifier.pooling, {.choices = {"first", "mean", "last"}}},
            {"dense", &classifier.dense}};
  }
};

class Classification : public Objective {
 public:
  Classification(const ClassificationOptions& options, const ObjectiveContext&)
      : classifier_(options.classifier) {}
  void Label(const LabelledRows&) const override {}
  bool takes_labels_of_data() const override { return true; }
  std::optional<ClassifierOptions> classifier() const override { return classifier_; }

 private:
  ClassifierOptions classifier_;
};

}  // namespace

ObjectiveVariant ClassificationVariant() {
  return VariantOf<ClassificationOptions, Classification, Objective, ObjectiveContext>(
      "classification");
}

}  // namespace halflife::model
