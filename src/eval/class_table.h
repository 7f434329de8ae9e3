// Collects a classifier's predictions for the documents of all windows, which may be on different
// ranks.
//
//   ClassTable classes(num_windows, model.objective());
//   classes.Add(/*window=*/3, batch, log_probs);
//   const std::optional<ClassScores> scores = classes.Scores(control);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "data/batch.h"
#include "dist/communicator.h"
#include "eval/class_scores.h"
#include "model/objectives/objective.h"

namespace halflife::eval {

class ClassTable {
 public:
  // Stores nothing if the objective has no classifier.
  ClassTable(int64_t num_windows, const model::Objective& objective)
      : num_classes_(objective.classifier() ? objective.classifier()->num_classes : 0),
        rows_(num_classes_ == 0 ? 0 : static_cast<size_t>(num_windows * width())) {}

  // Adds the documents of the windows starting at `window`: ln p [P, num_classes] for the batch's P
  // documents.
  void Add(int64_t window, const data::Batch& batch, const at::Tensor& log_probs);
  std::optional<ClassScores> Scores(dist::Communicator& control);  // Collective.

 private:
  int64_t width() const { return num_classes_ + 1; }

  int64_t num_classes_;  // 0: there is no classifier.
  // [window][label + 1, ln p of each class]. All 0 for windows that this rank has not scored.
  std::vector<double> rows_;
};

}  // namespace halflife::eval
