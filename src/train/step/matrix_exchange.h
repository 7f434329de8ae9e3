// Brings together whole matrices of which ranks hold only slices. Each matrix has an owner, the one
// rank that works on the whole matrix. Values travel from the ranks that hold them to the owner and
// back, in two AllToAllV. Which rank holds which elements is an argument, and all else follows from
// it.
//
//   const std::vector<WholeMatrix> matrices = FindMatrices(layout, /*per_head=*/false);
//   MatrixExchange exchange(matrices, PlanExchange(matrices, held, flops, {.rank = comm.rank()}),
//                           &comm, at::kFloat);
//   exchange.Run(steps);  // stages the ranges, transforms whole matrices, applies the ranges
//
// The matrices are divided into batches, so that the next batch travels while one is computed, and
// buffers stay small.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "dist/communicator.h"
#include "dist/parameter_layout.h"

namespace halflife::train {

// OpTag::what of the two directions.
constexpr char kMatrixToOwner[] = "matrix_to_owner";
constexpr char kMatrixToHolders[] = "matrix_to_holders";

// Consecutive rows of a parameter that are updated as one matrix.
struct WholeMatrix {
  int param = 0;
  int64_t begin = 0;  // element of the flattened parameter
  int64_t rows = 0, columns = 0;
  int64_t count() const { return rows * columns; }
};

// Returns the matrices of all parameters, in the order of parameters: their parts, or with
// `per_head` the heads of these parts. Parts whose heads have one row stay whole, because such a
// head is a vector.
std::vector<WholeMatrix> FindMatrices(const dist::ParameterLayout& layout, bool per_head);

// Elements of a matrix that a rank holds. The fragment lies within the matrix.
struct HeldRange {
  int matrix = 0;
  dist::Fragment part;
};

// Cuts fragments at the borders of matrices. `rest`: the fragments of parameters without matrices.
struct CutFragments {
  std::vector<HeldRange> of_matrices;
  std::vector<dist::Fragment> rest;
};
CutFragments CutAtMatrices(const std::vector<dist::Fragment>& fragments,
                           const std::vector<WholeMatrix>& matrices);

// Returns the owner of each matrix. In the order of decreasing cost, each matrix goes to the rank
// with the least cost so far.
std::vector<int> AssignOwners(const std::vector<double>& costs, int num_ranks);

// The part of one rank in a batch: it sends, receives and computes.
struct ExchangeBatch {
  std::vector<HeldRange> sent;           // its own ranges, by owner and matrix
  std::vector<int64_t> sent_counts;      // elements to each rank
  std::vector<HeldRange> received;       // ranges of its matrices, by holder and matrix
  std::vector<int64_t> received_counts;  // elements from each rank
  std::vector<int> owned;                // its matrices
};

struct ExchangePlace {
  int rank = 0;
  int64_t batch_elements = 16 << 20;  // of an average rank in one batch, at least one matrix
};

// `held`: by rank, each element of every matrix exactly once. `costs`: by matrix.
std::vector<ExchangeBatch> PlanExchange(const std::vector<WholeMatrix>& matrices,
                                        const std::vector<std::vector<HeldRange>>& held,
                                        const std::vector<double>& costs,
                                        const ExchangePlace& place);

class MatrixExchange {
 public:
  struct Steps {
    std::function<void(const HeldRange& range, const at::Tensor& out)> stage;
    // In place, [rows * columns].
    std::function<void(const WholeMatrix& matrix, const at::Tensor& values)> transform;
    std::function<void(const HeldRange& range, const at::Tensor& in)> apply;
  };

  // `ranks` is borrowed, and has the order of PlanExchange's `held`. Null: this rank holds
  // everything. `options`: dtype and device of the values.
  MatrixExchange(std::vector<WholeMatrix> matrices, std::vector<ExchangeBatch> batches,
                 dist::Communicator* ranks, const at::TensorOptions& options);

  // Collective. Stages all ranges, transforms the matrices of this rank and applies all ranges.
  // Everything runs on the current stream.
  void Run(const Steps& steps);

  // Returns the seconds that the host has waited since the last call.
  double TakeWaitSeconds() { return std::exchange(wait_seconds_, 0); }

  int64_t buffer_bytes() const;
  // Returns the matrices that this rank transforms, by batch.
  std::vector<WholeMatrix> owned() const;

 private:
  // Batches of which values exist at a time: one is applied, one is transformed, one travels.
  static constexpr int kSlots = 3;
  struct Slot {
    at::Tensor sent, received;  // the same memory without `ranks`
    dist::Work work;
  };
  // The pieces of one matrix in Slot::received, in the order of its elements.
  struct Gathered {
    struct Piece {
      int64_t begin = 0, count = 0;
    };
    int matrix = 0;
    std::vector<Piece> pieces;
  };

  std::vector<Gathered> Gather(const ExchangeBatch& batch) const;
  Slot& slot(size_t batch) { return slots_[batch % kSlots]; }
  void Stage(size_t batch, const Steps& steps);
  void Transform(size_t batch, const Steps& steps);
  void Apply(size_t batch, const Steps& steps);
  void Await(Slot& slot);

  std::vector<WholeMatrix> matrices_;
  std::vector<ExchangeBatch> batches_;
  std::vector<std::vector<Gathered>> gathered_;  // by batch
  dist::Communicator* ranks_;
  std::array<Slot, kSlots> slots_;
  double wait_seconds_ = 0;
};

}  // namespace halflife::train
