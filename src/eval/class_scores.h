// Quality of classification: accuracy, Matthews correlation, F1 and area under the curve, as
// scikit-learn defines them.
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
  // Matthews correlation of labels and predictions (Gorodkin, 2004, for more than two classes). 0
  // if either is constant.
  double mcc = 0;
  // 2 TP / (2 TP + FP + FN). f1_macro is the mean over all classes that occur or are predicted. f1
  // is the value of the second class if there are exactly two classes, and 0 if that class neither
  // occurs nor is predicted.
  double f1_macro = 0;
  std::optional<double> f1;
  // Area under the ROC curve: the share of pairs (one document of the class, one of another) that
  // the probability of the class ranks correctly; ties count half. For two classes, this is the
  // value of the second class; otherwise, the mean over classes, each against the rest. Absent if a
  // class has no documents or all of them, or if a probability is NaN.
  std::optional<double> auroc;
  std::vector<std::vector<int64_t>> confusion;  // [label][prediction]: number of documents.
};

// Computes all scores from `labels` [N], each in [0, num_classes), and `log_probs` [N, num_classes]
// in row-major order. The prediction is the most likely class, the first one if several are equal.
ClassScores ScoreClasses(std::span<const int32_t> labels, std::span<const double> log_probs,
                         int64_t num_classes);

}  // namespace halflife::eval
