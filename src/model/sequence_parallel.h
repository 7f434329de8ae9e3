// Sequence parallelism: every row of a batch is split into slices, one per rank of a group. The
// kernels exchange what a slice needs from the tokens before it. All other parts of a model process
// each token separately.
//
//   const SequenceParallel parallel = {.group = MakeSegmentGroup(comm)};
//   const SequenceSlice slice = parallel.SliceOf(whole);   // this rank's slice
//   model.Loss(parallel.TokensOf(tokens), parallel.TokensOf(targets), {.slice = &slice});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "model/sequence_slice.h"
#include "ops/sequence/row_segment.h"

namespace halflife::model {

// `comm` is borrowed. Its ranks hold the slices of a row in rank order.
std::shared_ptr<ops::SegmentGroup> MakeSegmentGroup(dist::Communicator& comm);

// Returns the number of tokens of a row of seq_len on each of num_ranks. Slices are multiples of
// `align`, as even as possible; the first ranks get the remainder. If there is less than one
// `align` per rank, tokens are split evenly and some slices may be empty.
std::vector<int64_t> CutRow(int64_t seq_len, int num_ranks, int64_t align);

struct SequenceParallel {
  // The chunk size of the GPU kernels. Slices aligned to it have the same chunk boundaries as whole
  // rows.
  static constexpr int64_t kAlign = 64;

  std::shared_ptr<ops::SegmentGroup> group;
  ops::StateStrategy strategy = ops::StateStrategy::kGather;
  std::shared_ptr<const ops::ExchangeCost> cost = {};  // Used with kCheapest.
  std::vector<int64_t> lengths = {};  // Lengths of the slices by rank. Empty: CutRow with kAlign.
  int threads = 1;                    // See RowSegment::threads.

  // Returns this rank's slice of whole rows.
  SequenceSlice SliceOf(const SequenceSlice& whole) const;
  at::Tensor TokensOf(const at::Tensor& x) const;  // [B, T, ...] -> [B, T of this rank, ...].

 private:
  std::vector<int64_t> LengthsOf(int64_t seq_len) const;
};

}  // namespace halflife::model
