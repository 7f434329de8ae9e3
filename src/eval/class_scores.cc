#include "eval/class_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace halflife::eval {
namespace {

using Confusion = std::vector<std::vector<int64_t>>;

double RowSum(const Confusion& confusion, size_t label) {
  const auto& row = confusion[label];
  return static_cast<double>(std::accumulate(row.begin(), row.end(), int64_t{0}));
}
double ColumnSum(const Confusion& confusion, size_t prediction) {
  int64_t sum = 0;
  for (const auto& row : confusion) sum += row[prediction];
  return static_cast<double>(sum);
}

double Correlation(const Confusion& confusion, double num_documents, double num_correct) {
  double products = 0, labels = 0, predictions = 0;  // sums over classes
  for (size_t k = 0; k < confusion.size(); ++k) {
    const double t = RowSum(confusion, k), p = ColumnSum(confusion, k);
    products += t * p;
    labels += t * t;
    predictions += p * p;
  }
  const double all = num_documents * num_documents;
  const double spread = std::sqrt((all - labels) * (all - predictions));
  return spread == 0 ? 0 : (num_correct * num_documents - products) / spread;
}

// Returns nullopt for a class that neither occurs nor is predicted.
std::optional<double> F1(const Confusion& confusion, size_t k) {
  const double sum = RowSum(confusion, k) + ColumnSum(confusion, k);
  if (sum == 0) return std::nullopt;
  return 2 * static_cast<double>(confusion[k][k]) / sum;
}

// Returns the area under the curve of class k against the rest, computed from the sum of ranks
// (Mann and Whitney).
std::optional<double> Area(std::span<const int32_t> labels, std::span<const double> log_probs,
                           size_t num_classes, size_t k) {
  const auto score = [&](size_t i) { return log_probs[i * num_classes + k]; };
  for (size_t i = 0; i < labels.size(); ++i)
    // NaN scores (of a diverged model) have no order.
    if (std::isnan(score(i))) return std::nullopt;
  std::vector<size_t> order(labels.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, score);
  double ranks = 0, positives = 0;
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && score(order[end]) == score(order[begin])) ++end;
    // The mean rank of equal scores.
    const double rank = 0.5 * static_cast<double>(begin + end + 1);
    for (size_t i = begin; i < end; ++i) {
      if (labels[order[i]] != static_cast<int32_t>(k)) continue;
      ranks += rank;
      ++positives;
    }
  }
  const double negatives = static_cast<double>(labels.size()) - positives;
  if (positives == 0 || negatives == 0) return std::nullopt;
  return (ranks - positives * (positives + 1) / 2) / (positives * negatives);
}

std::optional<double> Area(std::span<const int32_t> labels, std::span<const double> log_probs,
                           size_t num_classes) {
  if (num_classes == 2) return Area(labels, log_probs, 2, 1);
  double sum = 0;
  for (size_t k = 0; k < num_classes; ++k) {
    const auto one = Area(labels, log_probs, num_classes, k);
    if (!one) return std::nullopt;
    sum += *one;
  }
  return sum / static_cast<double>(num_classes);
}

}  // namespace

ClassScores ScoreClasses(std::span<const int32_t> labels, std::span<const double> log_probs,
                         int64_t num_classes) {
  const auto width = static_cast<size_t>(num_classes);
  HL_CHECK(!labels.empty() && log_probs.size() == labels.size() * width, labels.size(),
           " labels and ", log_probs.size(), " probabilities of ", num_classes, " classes");
  ClassScores scores = {.num_documents = static_cast<int64_t>(labels.size()),
                        .confusion = Confusion(width, std::vector<int64_t>(width, 0))};
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto row = log_probs.subspan(i * width, width);
    const auto prediction = static_cast<size_t>(std::ranges::max_element(row) - row.begin());
    ++scores.confusion.at(static_cast<size_t>(labels[i]))[prediction];
  }
  double num_correct = 0, f1 = 0, num_met = 0;
  for (size_t k = 0; k < width; ++k) {
    num_correct += static_cast<double>(scores.confusion[k][k]);
    const std::optional<double> of_class = F1(scores.confusion, k);
    f1 += of_class.value_or(0);
    num_met += of_class.has_value() ? 1 : 0;
  }
  const auto count = static_cast<double>(labels.size());
  scores.accuracy = num_correct / count;
  scores.mcc = Correlation(scores.confusion, count, num_correct);
  scores.f1_macro = f1 / num_met;
  if (num_classes == 2) scores.f1 = F1(scores.confusion, 1).value_or(0);
  scores.auroc = Area(labels, log_probs, width);
  return scores;
}

}  // namespace halflife::eval
