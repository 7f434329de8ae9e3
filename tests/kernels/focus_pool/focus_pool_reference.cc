#include "kernels/focus_pool/focus_pool_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace halflife::kernels {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// An item that a token may see: another token, one of the tail, or the initial state.
struct Leaf {
  double log_weight, mass;  // mass: factor on the exponential of the log weight
  const double* row;        // [P], with the same factor
  // Destinations of the gradients of the log weight and of the row; null: not computed.
  double* dlog_weight;
  double* drow;
  double* dmass;  // for a state, in place of dlog_weight
};

// The leaves of one run and head in order, and the number of leaves before its first token.
class Leaves {
 public:
  Leaves(const FocusPoolShape<double>& shape, const FocusRun& run, int64_t head,
         const FocusPoolGrads<double>& grads = {}) {
    const auto at = [](double* base, int64_t offset) {
      return base == nullptr ? nullptr : base + offset;
    };
    if (run.sequence >= 0 && shape.mass != nullptr) {
      const int64_t place = run.sequence * shape.num_heads + head;
      if (shape.mass[place] != 0)
        leaves_.push_back({shape.log_scale[place], shape.mass[place], shape.sum + place * shape.dim,
                           nullptr, at(grads.dinitial_sum, place * shape.dim),
                           at(grads.dinitial_mass, place)});
    }
    if (run.sequence >= 0 && shape.tail_log_weight != nullptr) {
      for (int64_t i = 0; i < shape.window - 1; ++i) {
        const int64_t place = (run.sequence * (shape.window - 1) + i) * shape.num_heads + head;
        leaves_.push_back({shape.tail_log_weight[place], 1, shape.tail_u + place * shape.dim,
                           at(grads.dtail_log_weight, place), at(grads.dtail_u, place * shape.dim),
                           nullptr});
      }
    }
    num_before_ = static_cast<int64_t>(leaves_.size());
    for (int64_t t = run.begin; t < run.begin + run.length; ++t) {
      const int64_t place = (run.row * shape.seq_len + t) * shape.num_heads + head;
      leaves_.push_back({shape.log_weight[place], 1, shape.u + place * shape.dim,
                         at(grads.dlog_weight, place), at(grads.du, place * shape.dim), nullptr});
    }
  }
  int64_t first(int64_t token, int64_t window) const {
    return window == 0 ? 0 : std::max<int64_t>(0, num_before_ + token - window + 1);
  }
  int64_t end(int64_t token) const { return num_before_ + token + 1; }
  const Leaf& operator[](int64_t i) const { return leaves_[i]; }

 private:
  std::vector<Leaf> leaves_;
  int64_t num_before_ = 0;
};

// `sum` is exp(-max) times the weighted rows of leaves [first, end).
struct Sums {
  double max = kNothing, mass = 0;
  std::vector<double> sum;
};
Sums SumOf(const Leaves& leaves, int64_t first, int64_t end, int64_t dim) {
  Sums sums = {.sum = std::vector<double>(dim)};
  for (int64_t j = first; j < end; ++j) sums.max = std::max(sums.max, leaves[j].log_weight);
  if (sums.max == kNothing) return sums;
  for (int64_t j = first; j < end; ++j) {
    if (leaves[j].log_weight == kNothing) continue;
    const double weight = std::exp(leaves[j].log_weight - sums.max);
    sums.mass += weight * leaves[j].mass;
    for (int64_t p = 0; p < dim; ++p) sums.sum[p] += weight * leaves[j].row[p];
  }
  return sums;
}

// Passes the gradients of a reader's sums on to leaves [first, end): those of exp(max) sum and
// exp(max) mass, both times exp(-max).
void PassOn(const Leaves& leaves, int64_t first, int64_t end, double max, double dmass,
            const std::vector<double>& dsum) {
  for (int64_t j = first; j < end; ++j) {
    const Leaf& leaf = leaves[j];
    if (leaf.log_weight == kNothing || leaf.drow == nullptr) continue;
    const double weight = std::exp(leaf.log_weight - max);
    double dot = 0;
    for (size_t p = 0; p < dsum.size(); ++p) {
      leaf.drow[p] += weight * dsum[p];
      dot += leaf.row[p] * dsum[p];
    }
    if (leaf.dlog_weight != nullptr) *leaf.dlog_weight += weight * (dot + dmass);
    if (leaf.dmass != nullptr) *leaf.dmass += weight * dmass;
  }
}

}  // namespace

void FocusPoolReference(const FocusPoolShape<double>& shape,
                        const FocusPoolResults<double>& results) {
  for (int64_t i = 0; i < shape.num_runs; ++i) {
    const FocusRun& run = shape.runs[i];
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      const Leaves leaves(shape, run, head);
      for (int64_t t = 0; t < run.length; ++t) {
        const Sums sums = SumOf(leaves, leaves.first(t, shape.window), leaves.end(t), shape.dim);
        const bool nothing = sums.max == kNothing;
        const double eps = shape.eps > 0 ? shape.eps * std::exp(-sums.max) : 0;
        const double total = nothing ? 0 : sums.mass + eps;
        const int64_t place = (run.row * shape.seq_len + run.begin + t) * shape.num_heads + head;
        results.row_max[place] = sums.max;
        results.row_sum[place] = total;
        for (int64_t p = 0; p < shape.dim; ++p)
          results.out[place * shape.dim + p] = nothing ? 0 : sums.sum[p] / total;
      }
      if (run.final_state < 0 || results.log_scale == nullptr) continue;
      const Sums sums = SumOf(leaves, 0, leaves.end(run.length - 1), shape.dim);
      const int64_t place = run.final_state * shape.num_heads + head;
      results.log_scale[place] = sums.max == kNothing ? 0 : sums.max;
      results.mass[place] = sums.mass;
      std::copy(sums.sum.begin(), sums.sum.end(), results.sum + place * shape.dim);
    }
  }
}

void FocusPoolReferenceBackward(const FocusPoolShape<double>& shape,
                                const FocusPoolResults<double>& results,
                                const FocusPoolGrads<double>& grads) {
  std::vector<double> dsum(shape.dim);
  for (int64_t i = 0; i < shape.num_runs; ++i) {
    const FocusRun& run = shape.runs[i];
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      const Leaves leaves(shape, run, head, grads);
      for (int64_t t = 0; t < run.length; ++t) {
        const int64_t place = (run.row * shape.seq_len + run.begin + t) * shape.num_heads + head;
        if (results.row_sum[place] == 0) continue;
        double dmass = 0;
        for (int64_t p = 0; p < shape.dim; ++p) {
          dsum[p] = grads.dout[place * shape.dim + p] / results.row_sum[place];
          dmass -= dsum[p] * results.out[place * shape.dim + p];
        }
        PassOn(leaves, leaves.first(t, shape.window), leaves.end(t), results.row_max[place], dmass,
               dsum);
      }
      if (run.final_state < 0 || grads.dsum == nullptr) continue;
      const int64_t place = run.final_state * shape.num_heads + head;
      if (results.mass[place] == 0) continue;
      std::copy_n(grads.dsum + place * shape.dim, shape.dim, dsum.begin());
      PassOn(leaves, 0, leaves.end(run.length - 1), results.log_scale[place], grads.dmass[place],
             dsum);
    }
  }
}

}  // namespace halflife::kernels
