#include "train/step/matrix_exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "ops/torch/tensor_views.h"

namespace halflife::train {
namespace {

int64_t Count(const HeldRange& range) { return range.part.end - range.part.begin; }

int64_t Total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{});
}

// Returns the indices of the matrices, the most expensive first.
std::vector<int> ByCost(const std::vector<double>& costs) {
  std::vector<int> order(costs.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int matrix) { return costs[matrix]; });
  return order;
}

// Returns the batch of each matrix. A batch takes matrices in the order of decreasing cost, so that
// its matrices have many owners.
std::vector<size_t> AssignBatches(const std::vector<WholeMatrix>& matrices,
                                  const std::vector<int>& order, int64_t max_elements) {
  std::vector<size_t> batches(matrices.size());
  size_t batch = 0;
  int64_t elements = 0;
  for (const int matrix : order) {
    if (elements > 0 && elements + matrices[matrix].count() > max_elements) ++batch, elements = 0;
    elements += matrices[matrix].count();
    batches[matrix] = batch;
  }
  return batches;
}

}  // namespace

std::vector<WholeMatrix> FindMatrices(const dist::ParameterLayout& layout, bool per_head) {
  std::vector<WholeMatrix> matrices;
  for (int param = 0; param < std::ssize(layout.specs()); ++param) {
    const dist::ParamSpec& spec = layout.specs()[param];
    int64_t begin = 0;
    for (const MatrixPart& part : spec.parts) {
      const int64_t count = per_head && part.rows > part.heads ? part.heads : 1;
      const int64_t rows = part.rows / count, columns = spec.shape[1];
      for (int64_t i = 0; i < count; ++i, begin += rows * columns)
        if (rows * columns > 0) matrices.push_back({param, begin, rows, columns});
    }
  }
  return matrices;
}

CutFragments CutAtMatrices(const std::vector<dist::Fragment>& fragments,
                           const std::vector<WholeMatrix>& matrices) {
  CutFragments cut;
  for (const dist::Fragment& fragment : fragments) {
    const auto [first, last] =
        std::ranges::equal_range(matrices, fragment.param, {}, &WholeMatrix::param);
    if (first == last) cut.rest.push_back(fragment);
    for (auto matrix = first; matrix != last; ++matrix) {
      const int64_t begin = std::max(fragment.begin, matrix->begin);
      const int64_t end = std::min(fragment.end, matrix->begin + matrix->count());
      if (begin >= end) continue;
      const int64_t skipped = begin - fragment.begin;
      cut.of_matrices.push_back({static_cast<int>(matrix - matrices.begin()),
                                 {.param = fragment.param,
                                  .begin = begin,
                                  .end = end,
                                  .arena_begin = fragment.arena_begin + skipped,
                                  .slice_begin = fragment.slice_begin + skipped}});
    }
  }
  return cut;
}

std::vector<int> AssignOwners(const std::vector<double>& costs, int num_ranks) {
  std::vector<int> owners(costs.size());
  std::vector<double> loads(static_cast<size_t>(num_ranks));
  for (const int matrix : ByCost(costs)) {
    const auto least = std::ranges::min_element(loads);
    owners[matrix] = static_cast<int>(least - loads.begin());
    *least += costs[matrix];
  }
  return owners;
}

std::vector<ExchangeBatch> PlanExchange(const std::vector<WholeMatrix>& matrices,
                                        const std::vector<std::vector<HeldRange>>& held,
                                        const std::vector<double>& costs,
                                        const ExchangePlace& place) {
  if (matrices.empty()) return {};
  const auto num_ranks = static_cast<int>(held.size());
  const std::vector<int> owners = AssignOwners(costs, num_ranks);
  const std::vector<size_t> batch_of =
      AssignBatches(matrices, ByCost(costs), place.batch_elements * num_ranks);
  std::vector<ExchangeBatch> batches(1 + *std::ranges::max_element(batch_of));
  for (ExchangeBatch& batch : batches) {
    batch.sent_counts.resize(held.size());
    batch.received_counts.resize(held.size());
  }
  for (size_t matrix = 0; matrix < matrices.size(); ++matrix)
    if (owners[matrix] == place.rank)
      batches[batch_of[matrix]].owned.push_back(static_cast<int>(matrix));
  const auto order = [&](const HeldRange& range) {
    return std::tuple(owners[range.matrix], range.matrix, range.part.begin);
  };
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::vector<HeldRange> ranges = held[rank];
    std::ranges::stable_sort(ranges, {}, order);
    for (const HeldRange& range : ranges) {
      ExchangeBatch& batch = batches[batch_of[range.matrix]];
      if (rank == place.rank) {
        batch.sent.push_back(range);
        batch.sent_counts[owners[range.matrix]] += Count(range);
      }
      if (owners[range.matrix] == place.rank) {
        batch.received.push_back(range);
        batch.received_counts[rank] += Count(range);
      }
    }
  }
  return batches;
}

MatrixExchange::MatrixExchange(std::vector<WholeMatrix> matrices,
                               std::vector<ExchangeBatch> batches, dist::Communicator* ranks,
                               const at::TensorOptions& options)
    : matrices_(std::move(matrices)), batches_(std::move(batches)), ranks_(ranks) {
  for (const ExchangeBatch& batch : batches_) gathered_.push_back(Gather(batch));
  // Each slot has room for the largest of its batches.
  for (size_t i = 0; i < slots_.size(); ++i) {
    int64_t sent = 0, received = 0;
    for (size_t batch = i; batch < batches_.size(); batch += kSlots) {
      sent = std::max(sent, Total(batches_[batch].sent_counts));
      received = std::max(received, Total(batches_[batch].received_counts));
    }
    slots_[i].sent = at::empty({sent}, options);
    slots_[i].received = ranks_ == nullptr ? slots_[i].sent : at::empty({received}, options);
  }
}

std::vector<MatrixExchange::Gathered> MatrixExchange::Gather(const ExchangeBatch& batch) const {
  using Placed = std::pair<int64_t, Gathered::Piece>;  // a piece and its first element
  std::map<int, std::vector<Placed>> by_matrix;
  int64_t place = 0;
  for (const HeldRange& range : batch.received) {
    by_matrix[range.matrix].push_back({range.part.begin, {place, Count(range)}});
    place += Count(range);
  }
  std::vector<Gathered> gathered;
  for (const int matrix : batch.owned) {
    std::vector<Placed>& placed = by_matrix[matrix];
    std::ranges::sort(placed, {}, &Placed::first);
    Gathered& one = gathered.emplace_back(Gathered{.matrix = matrix, .pieces = {}});
    int64_t count = 0;
    for (const auto& [element, piece] : placed) one.pieces.push_back(piece), count += piece.count;
    HL_CHECK(count == matrices_[matrix].count(), "the ranks hold ", count, " of ",
             matrices_[matrix].count(), " elements of matrix ", matrix);
  }
  return gathered;
}

int64_t MatrixExchange::buffer_bytes() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_)
    bytes += static_cast<int64_t>(slot.sent.nbytes()) +
             (ranks_ == nullptr ? 0 : static_cast<int64_t>(slot.received.nbytes()));
  return bytes;
}

std::vector<WholeMatrix> MatrixExchange::owned() const {
  std::vector<WholeMatrix> owned;
  for (const ExchangeBatch& batch : batches_)
    for (const int matrix : batch.owned) owned.push_back(matrices_[matrix]);
  return owned;
}

void MatrixExchange::Run(const Steps& steps) {
  if (batches_.empty()) return;
  Stage(0, steps);
  for (size_t batch = 0; batch < batches_.size(); ++batch) {
    if (batch + 1 < batches_.size()) Stage(batch + 1, steps);
    Transform(batch, steps);
    if (batch > 0) Apply(batch - 1, steps);
  }
  Apply(batches_.size() - 1, steps);
}

void MatrixExchange::Await(Slot& slot) {
  wait_seconds_ +=
      dist::AwaitResult(std::move(slot.work), ops::CurrentStream(ops::RefOf(slot.sent).device));
}

void MatrixExchange::Stage(size_t batch, const Steps& steps) {
  const ExchangeBatch& plan = batches_[batch];
  Slot& own = slot(batch);
  int64_t place = 0;
  for (const HeldRange& range : plan.sent) {
    steps.stage(range, own.sent.narrow(0, place, Count(range)));
    place += Count(range);
  }
  if (ranks_ == nullptr) return;
  const TensorRef sent = ops::RefOf(own.sent), received = ops::RefOf(own.received);
  own.work = ranks_->AllToAllV(sent.Slice(0, Total(plan.sent_counts)),
                               received.Slice(0, Total(plan.received_counts)), plan.sent_counts,
                               plan.received_counts, {kMatrixToOwner, static_cast<int>(batch)},
                               ops::CurrentStream(sent.device));
}

void MatrixExchange::Transform(size_t batch, const Steps& steps) {
  const ExchangeBatch& plan = batches_[batch];
  Slot& own = slot(batch);
  Await(own);
  for (const Gathered& one : gathered_[batch]) {
    std::vector<at::Tensor> pieces;
    for (const auto& [begin, count] : one.pieces)
      pieces.push_back(own.received.narrow(0, begin, count));
    const at::Tensor whole = pieces.size() == 1 ? pieces[0] : at::cat(pieces);
    steps.transform(matrices_[one.matrix], whole);
    if (pieces.size() == 1) continue;
    int64_t begin = 0;
    for (const at::Tensor& piece : pieces) {
      piece.copy_(whole.narrow(0, begin, piece.numel()));
      begin += piece.numel();
    }
  }
  if (ranks_ == nullptr) return;
  const TensorRef sent = ops::RefOf(own.sent), received = ops::RefOf(own.received);
  own.work = ranks_->AllToAllV(received.Slice(0, Total(plan.received_counts)),
                               sent.Slice(0, Total(plan.sent_counts)), plan.received_counts,
                               plan.sent_counts, {kMatrixToHolders, static_cast<int>(batch)},
                               ops::CurrentStream(sent.device));
}

void MatrixExchange::Apply(size_t batch, const Steps& steps) {
  Slot& own = slot(batch);
  Await(own);
  int64_t place = 0;
  for (const HeldRange& range : batches_[batch].sent) {
    steps.apply(range, own.sent.narrow(0, place, Count(range)));
    place += Count(range);
  }
}

}  // namespace halflife::train
