// States that are sums over the tokens of a row and decay, where each rank holds a segment of it:
//
//   after = exp(log_transition) before + own
//
// Every strategy folds from the first rank on, in the same order, so that all give the same bits.
//
//   const SegmentState before = StateBefore(summary, row);
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/sequence/row_segment.h"
#include "kernels/torch/autograd.h"

namespace halflife::kernels {

struct SegmentState {
  Tensors values;  // [N, C, ...] each, of N rows; all of one dtype, fp32 or fp64
  // [N, C], or undefined: exp of it times the values counts. -inf: nothing has been seen.
  at::Tensor log_scale = {};
};

// A log scale as the kernels hold it, 0 where nothing has been seen, and back: `nothing` says
// where.
at::Tensor ScaleOrZero(const at::Tensor& log_scale);
at::Tensor ScaleOfSeen(const at::Tensor& log_scale, const at::Tensor& nothing);

// x [N, C, ...] with sizes of 1 behind, as many dimensions as `like`.
at::Tensor Beside(const at::Tensor& x, const at::Tensor& like);

struct SegmentSummary {
  SegmentState own;           // after the segment, from nothing
  at::Tensor log_transition;  // [N, C, ...], sizes of 1 broadcast; -inf: a document starts inside
};

struct Passed {
  SegmentState after;
  // Of the values as they are, without their log scales: [N, C, ...], 0 where a document starts.
  at::Tensor factor;
};
// The state after a segment from the one before it. What a document start cuts off passes nothing
// on, a NaN neither.
Passed PassThrough(const SegmentSummary& segment, const SegmentState& before);

// The state before this rank's segment; on the first rank without values. All ranks call it.
SegmentState StateBefore(const SegmentSummary& own, const RowSegment& row);

// dL/d(values after this rank's segment); on the last rank none. `local` is what this rank's own
// outputs give dL/d(values before it), `factor` as PassThrough of its segment gives it; neither is
// read on the first rank. All ranks call it.
Tensors GradientAfter(const Tensors& local, const at::Tensor& factor, const RowSegment& row);

}  // namespace halflife::kernels
