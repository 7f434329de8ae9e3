// How a trained model is evaluated on texts of another length than those it was trained on: as it
// is, or with another pattern, positions or scale of its attention, none of which has parameters.
//
//   const LengthMethod method = LengthMethod::Parse("blocks:64+info_scale");
//   const auto other = method.AppliedTo(model, {.train_len = 128, .length = 2048});
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/language_model.h"

namespace halflife::eval {

struct LengthScene {
  int64_t train_len = 0;  // tokens of a row in training
  int64_t length = 0;     // of a row now
};

class LengthMethod {
 public:
  // Steps joined by '+', each a name and, where it takes one, ":NUMBER". Error kUsage for unknown
  // names (with the known ones), numbers that are none or not above 0, and two steps that set the
  // same (pattern, sinks, positions, scale).
  static LengthMethod Parse(std::string_view text);
  // Several, each tried on the model, so that what does not fit it is told before hours of others.
  static std::vector<LengthMethod> ParseAll(const std::vector<std::string>& texts,
                                            const model::LanguageModel& model,
                                            const LengthScene& scene);
  const std::string& text() const { return text_; }

  // A model of the same weights, which it borrows from `model`'s memory. Error kUsage where the
  // model has no layer of softmax, or tells positions in a way that the method would replace.
  std::unique_ptr<model::LanguageModel> AppliedTo(const model::LanguageModel& model,
                                                  const LengthScene& scene) const;

 private:
  struct Step {
    std::string name;
    std::optional<int64_t> number;
  };
  std::string text_;
  std::vector<Step> steps_;
};

}  // namespace halflife::eval
