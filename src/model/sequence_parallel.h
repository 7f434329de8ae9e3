// Sequence parallelism: every row of a batch is cut into slices, one a rank of a group, and the
// kernels exchange what a slice needs of the tokens before it. All else of a model is of one token
// alone.
//
//   const SequenceParallel parallel = {.group = MakeSegmentGroup(comm)};
//   const SequenceSlice slice = parallel.SliceOf(whole);   // of this rank
//   model.Loss(parallel.TokensOf(tokens), parallel.TokensOf(targets), {.slice = &slice});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "kernels/sequence/row_segment.h"
#include "model/sequence_slice.h"

namespace halflife::model {

// `comm` is borrowed; its ranks hold the slices of rows in their order.
std::shared_ptr<kernels::SegmentGroup> MakeSegmentGroup(dist::Communicator& comm);

// Tokens of a row of seq_len on each of num_ranks: as even as multiples of `align` allow, the first
// ranks taking what is over; plainly even where there is less than one `align` for each. Some may
// be 0.
std::vector<int64_t> CutRow(int64_t seq_len, int num_ranks, int64_t align);

struct SequenceParallel {
  // A chunk of the GPU's kernels: the borders of chunks are then those of whole rows.
  static constexpr int64_t kAlign = 64;

  std::shared_ptr<kernels::SegmentGroup> group;
  kernels::StateStrategy strategy = kernels::StateStrategy::kGather;
  std::shared_ptr<const kernels::ExchangeCost> cost = {};  // with kCheapest
  std::vector<int64_t> lengths = {};  // of the slices, by rank; empty: CutRow with kAlign
  int threads = 1;                    // as RowSegment's

  // This rank's slice of whole rows.
  SequenceSlice SliceOf(const SequenceSlice& whole) const;
  at::Tensor TokensOf(const at::Tensor& x) const;  // [B, T, ...] -> [B, T of this rank, ...]

 private:
  std::vector<int64_t> LengthsOf(int64_t seq_len) const;
};

}  // namespace halflife::model
