// The scores of classifiers: accuracy, MCC, F1 and AUROC.
#include "eval/class_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace halflife::eval {
namespace {

std::vector<double> LogsOf(const std::vector<double>& of_second) {
  std::vector<double> logs;
  for (const double p : of_second) {
    logs.push_back(std::log(1 - p));
    logs.push_back(std::log(p));
  }
  return logs;
}

// Calculated by hand: predictions 0 1 1 1 0 0, so TP 2, TN 2, FP 1, FN 1. MCC is (2 2 - 1 1) /
// sqrt(3^4), F1 is 4 / 6 for either class. Of the 9 pairs, 7 are in order and 1 is a tie.
TEST(ClassScores, TwoClassesByHand) {
  const std::vector<int32_t> labels = {0, 0, 1, 1, 1, 0};
  const auto scores = ScoreClasses(labels, LogsOf({0.1, 0.6, 0.6, 0.8, 0.3, 0.2}), 2);
  EXPECT_EQ(scores.num_documents, 6);
  EXPECT_DOUBLE_EQ(scores.accuracy, 4.0 / 6);
  EXPECT_DOUBLE_EQ(scores.mcc, 1.0 / 3);
  EXPECT_DOUBLE_EQ(scores.f1.value(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(scores.f1_macro, 2.0 / 3);
  EXPECT_DOUBLE_EQ(scores.auroc.value(), 7.5 / 9);
  EXPECT_EQ(scores.confusion, (std::vector<std::vector<int64_t>>{{2, 1}, {1, 2}}));
}

// A constant prediction, and labels of one class: the remaining scores are reported, and none is
// NaN.
TEST(ClassScores, ConstantPredictionsOrLabels) {
  const auto constant = ScoreClasses(std::vector<int32_t>{0, 1, 1}, LogsOf({0.9, 0.9, 0.9}), 2);
  EXPECT_EQ(constant.mcc, 0);
  EXPECT_DOUBLE_EQ(constant.accuracy, 2.0 / 3);
  EXPECT_DOUBLE_EQ(constant.auroc.value(), 0.5);  // All pairs are ties.
  EXPECT_DOUBLE_EQ(constant.f1_macro, 0.5 * (2 * 2 / 5.0));
  const auto one_class = ScoreClasses(std::vector<int32_t>{1, 1}, LogsOf({0.9, 0.2}), 2);
  EXPECT_EQ(one_class.mcc, 0);
  EXPECT_FALSE(one_class.auroc.has_value());
}

// A model that has diverged, and a class that does not occur.
TEST(ClassScores, NanScoresAndMissingClasses) {
  const double nan = std::nan("");
  const auto diverged = ScoreClasses(std::vector<int32_t>{0, 1}, std::vector<double>(4, nan), 2);
  EXPECT_FALSE(diverged.auroc.has_value());
  const std::vector<double> logs = {-1, -2, -3, -1, -2, -3, -2, -1, -3};
  const auto unmet = ScoreClasses(std::vector<int32_t>{0, 0, 1}, logs, 3);
  EXPECT_DOUBLE_EQ(unmet.f1_macro, 1) << "of the two that are met";
  EXPECT_FALSE(unmet.auroc.has_value());
}

// Three classes compared with the definitions: Gorodkin's covariances of indicators, and pairs that
// are counted one by one.
TEST(ClassScores, ThreeClassesByDefinition) {
  constexpr int kClasses = 3, kDocuments = 200;
  std::mt19937 random(5);
  std::vector<int32_t> labels;
  std::vector<double> logs;
  for (int i = 0; i < kDocuments; ++i) {
    labels.push_back(static_cast<int32_t>(random() % kClasses));
    for (int k = 0; k < kClasses; ++k)  // Discrete values, so that there are ties.
      logs.push_back(-static_cast<double>(random() % 7) - (k == labels.back() ? 0 : 2));
  }
  const ClassScores scores = ScoreClasses(labels, logs, kClasses);
  const auto at = [&](int i, int k) { return logs[static_cast<size_t>(i * kClasses + k)]; };
  const auto predicted = [&](int i) {
    int best = 0;
    for (int k = 1; k < kClasses; ++k)
      if (at(i, k) > at(i, best)) best = k;
    return best;
  };
  const auto covariance = [&](const auto& x, const auto& y) {
    double sum = 0;
    for (int k = 0; k < kClasses; ++k) {
      double xs = 0, ys = 0, products = 0;
      for (int i = 0; i < kDocuments; ++i) {
        const double a = x(i) == k, b = y(i) == k;
        xs += a, ys += b, products += a * b;
      }
      sum += products / kDocuments - xs / kDocuments * ys / kDocuments;
    }
    return sum;
  };
  const auto label = [&](int i) { return labels[static_cast<size_t>(i)]; };
  EXPECT_NEAR(scores.mcc,
              covariance(label, predicted) /
                  std::sqrt(covariance(label, label) * covariance(predicted, predicted)),
              1e-12);
  double areas = 0;
  for (int k = 0; k < kClasses; ++k) {
    double in_order = 0, pairs = 0;
    for (int i = 0; i < kDocuments; ++i) {
      for (int j = 0; j < kDocuments; ++j) {
        if (label(i) != k || label(j) == k) continue;
        ++pairs;
        in_order += at(i, k) > at(j, k) ? 1 : at(i, k) == at(j, k) ? 0.5 : 0;
      }
    }
    areas += in_order / pairs / kClasses;
  }
  EXPECT_NEAR(scores.auroc.value(), areas, 1e-12);
  EXPECT_FALSE(scores.f1.has_value());
}

}  // namespace
}  // namespace halflife::eval
