// Passes the states of linear recurrences between the ranks that share a row. Each rank holds one
// segment of the row, and a segment maps the state before it to the state after it:
//
//   after = A before + own
//
// `own` is the state after the segment's tokens if nothing comes before them. The transition A acts
// on the K channels of the keys. It is either diagonal, given as a logarithm (decays), or a dense
// K x K matrix per head (the delta rule and its relatives).
//
// Every strategy (StateStrategy) folds the segments from the first rank on, in the same order. With
// diagonal transitions all strategies give the same bits. With dense ones this also needs a batched
// matrix product whose bits do not depend on the number of matrices; the CPU tests check it.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/sequence/row_segment.h"
#include "ops/torch/autograd.h"

namespace halflife::ops {

// A state of N rows with C heads (or channels).
struct SegmentState {
  Tensors values;  // [N, C, ...] each; all of one dtype, fp32 or fp64
  // [N, C], or undefined. The state is exp(log_scale) times the values. -inf: no token was seen.
  at::Tensor log_scale = {};
};

// The kernels store a log scale of 0 if no token was seen, where a SegmentState has -inf.
// ScaleOrZero converts to the kernels' form and ScaleOfSeen back; `nothing` [N, C] bool is true
// where no token was seen.
at::Tensor ScaleOrZero(const at::Tensor& log_scale);
at::Tensor ScaleOfSeen(const at::Tensor& log_scale, const at::Tensor& nothing);

// x [N, C, ...] with trailing dimensions of size 1, so that it has as many dimensions as `like`.
at::Tensor UnsqueezeLike(const at::Tensor& x, const at::Tensor& like);

// Describes how a segment changes the state. Exactly one of the two transitions is defined, and it
// is the same one on all ranks.
struct SegmentSummary {
  SegmentState own;
  // Diagonal A: its natural logarithm [N, C, ...]; sizes of 1 broadcast over the values. -inf: a
  // document starts inside the segment.
  at::Tensor log_transition = {};
  // Dense A [N, C, K, K], for values [N, C, K, V] or [N, C, K] without a log scale. All zeros: a
  // document starts inside the segment.
  at::Tensor transition_matrix = {};

  bool is_dense() const { return transition_matrix.defined(); }
  const at::Tensor& transition() const { return is_dense() ? transition_matrix : log_transition; }
};

// The linear map that a segment applies to the values of the state before it.
struct Transition {
  // Elementwise factors [N, C, ...], or dense matrices [N, C, K, K].
  at::Tensor factor;
  bool is_dense = false;
};

struct Passed {
  SegmentState after;
  // Maps the values before to the values after, as they are stored (without log scales). 0 where a
  // document starts inside the segment.
  Transition transition;
};
// Returns the state after a segment, given the state before it. If a document starts inside the
// segment, nothing of `before` is passed on, not even a NaN.
Passed PassThrough(const SegmentSummary& segment, const SegmentState& before);

// Returns the state before this rank's segment. On the first rank the result has no values.
// Collective.
SegmentState StateBefore(const SegmentSummary& own, const RowSegment& row);

// dL/d(values after this rank's segment); empty on the last rank. `local` is dL/d(values before the
// segment) through this rank's own outputs only, and `transition` is PassThrough's. The first rank
// passes both for their shapes only; their values are not read. Collective.
Tensors GradientAfter(const Tensors& local, const Transition& transition, const RowSegment& row);

}  // namespace halflife::ops
