// How a trained model is evaluated on texts that are longer (or shorter) than its training rows:
// unchanged, or with another pattern, positions or scale of its attention. No method has
// parameters.
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

struct RowLengths {
  int64_t train_len = 0;  // Tokens of a row in training.
  int64_t length = 0;     // Tokens of a row in this evaluation.
};

class LengthMethod {
 public:
  // Parses steps that are joined by '+'. Each step is a name, followed by ":NUMBER" if the step
  // takes a number. Throws kUsage for unknown names (and lists the known ones), for numbers that
  // are not whole numbers above 0, and for two steps that set the same facet (pattern, sinks,
  // positions, scale).
  static LengthMethod Parse(std::string_view text);
  // Parses several methods and applies each to the model once, so that a method that does not fit
  // is reported before a long evaluation starts.
  static std::vector<LengthMethod> ParseAll(const std::vector<std::string>& texts,
                                            const model::LanguageModel& model,
                                            const RowLengths& lengths);
  const std::string& text() const { return text_; }

  // Returns a model with the same weights, which it borrows from `model`. Throws kUsage if the
  // model has no softmax attention, or if the method would replace positions that the model was
  // trained with.
  std::unique_ptr<model::LanguageModel> AppliedTo(const model::LanguageModel& model,
                                                  const RowLengths& lengths) const;

 private:
  struct Step {
    std::string name;
    std::optional<int64_t> number;
  };
  std::string text_;
  std::vector<Step> steps_;
};

}  // namespace halflife::eval
