// How well classes are told: accuracy, correlation, F1 and area under the curve, as scikit-learn
// defines them.
//
//   const ClassScores scores = ScoreClasses(labels, log_probs, /*num_classes=*/2);
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace halflife::eval {

struct ClassScores {
  int64_t num_documents = 0;
  double accuracy = 0;
  // Matthews' correlation of labels and predictions (Gorodkin, 2004, for more than two classes); 0
  // where either is constant.
  double mcc = 0;
  // 2 TP / (2 TP + FP + FN): the mean over the classes that are there or predicted; and that of the
  // second class, where there are two, 0 if it is neither.
  double f1_macro = 0;
  std::optional<double> f1;
  // The share of pairs, one of a class and one of another, that the probability of the class puts
  // in order; ties count half. Of two classes that of the second; else the mean over the classes,
  // each against the rest. Nothing where a class has no document, or all of them, or a probability
  // is NaN.
  std::optional<double> auroc;
  std::vector<std::vector<int64_t>> confusion;  // [label][prediction] documents
};

// `labels` [N], each in [0, num_classes); `log_probs` [N, num_classes] row-major. The prediction is
// the likeliest class, the first of equals.
ClassScores ScoreClasses(std::span<const int32_t> labels, std::span<const double> log_probs,
                         int64_t num_classes);

}  // namespace halflife::eval
