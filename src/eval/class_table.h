// What a classifier says of the documents of all windows, gathered from the ranks that have them.
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
  // Keeps nothing for an objective without a classifier.
  ClassTable(int64_t num_windows, const model::Objective& objective)
      : num_classes_(objective.classifier() ? objective.classifier()->num_classes : 0),
        rows_(num_classes_ == 0 ? 0 : static_cast<size_t>(num_windows * width())) {}

  // The documents of the windows from `window` on: ln p [P, num_classes] of the batch's P.
  void Add(int64_t window, const data::Batch& batch, const at::Tensor& log_probs);
  std::optional<ClassScores> Scores(dist::Communicator& control);  // collective

 private:
  int64_t width() const { return num_classes_ + 1; }

  int64_t num_classes_;  // 0: there are none
  // [window][label + 1, ln p of each class], all 0 where a rank has not seen it.
  std::vector<double> rows_;
};

}  // namespace halflife::eval
