// Runs a scan over rows that are split over several ranks, given a function that scans one segment.
// Each rank summarises its segment, the ranks exchange the states (state_exchange.h), and each rank
// then runs its segment from the state before it. Backward does the same in reverse.
//
// The first and the last rank scan their tokens once: the first has no incoming state, so its
// forward run already yields the summary, and no rank needs the last rank's summary. The last rank
// therefore waits for the first one in layer 0 only; afterwards the first rank runs ahead. In
// backward the last rank runs ahead.
//
//   const Tensors out = RunSegment({.name = "Scan",
//                                   .inputs = {x, decay},
//                                   .run = run,
//                                   .summarise = summarise,
//                                   .nothing = nothing}, row);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "ops/sequence/state_exchange.h"
#include "ops/torch/column_slices.h"

namespace halflife::ops {

struct ScannedSegment {
  Tensors outputs;
  size_t num_constant = 0;  // number of trailing outputs without a gradient
  // The state after the segment. Only its values are differentiated: the log scale is a constant.
  SegmentState after;
};

// Computes dL/d(values before) through the outputs only, given the outputs and the gradients of
// those that are not constant. Kept until backward.
using GradientBefore = std::function<Tensors(const SegmentState& before, const Tensors& outputs,
                                             const Tensors& doutputs)>;

struct SegmentScan {
  const char* name = "";  // in the error messages of LibTorch
  Tensors inputs;         // the differentiable inputs; undefined: absent
  // Scans the segment of `inputs` from the state `before`; a state without values is zero. The
  // result is differentiable in the inputs and the values.
  std::function<ScannedSegment(const Tensors& inputs, const SegmentState& before)> run;
  // Summarises the segment. Called without gradients, on all ranks but the first and the last.
  std::function<SegmentSummary()> summarise;
  // Returns a summary with the shapes and dtypes of `summarise`; its values are not read.
  std::function<SegmentSummary()> nothing;
  GradientBefore gradient_before = {};  // optional: replaces a backward pass of `run`
};

// Returns the outputs of this rank's segment. Collective in forward and in backward.
Tensors RunSegment(const SegmentScan& scan, const RowSegment& row);

// A tensor that InPieces cuts along its channels (or heads) C.
struct Cuttable {
  at::Tensor tensor;  // [B, T, C, ...] if of_tokens, else [C, ...]
  bool of_tokens;
};
struct Piece {
  Tensors tensors;  // in the order of the Cuttables
  // For each tensor of tokens, and for the output: columns of one matrix that the kernel may write
  // to. Pieces that are written there need no concatenation.
  std::vector<ColumnSlice> gradients;
  ColumnSlice output;
};
// The smallest piece for vectorised kernels: the lanes of one vector.
constexpr int64_t kMinChannels = 16;
// Runs a scan with independent channels in up to four pieces of at least `least` channels, so that
// a rank waits only for the first piece of the rank before it. `run` returns one piece of the
// output; the result has the shape of `like`, a tensor of tokens. The first Cuttable must be of
// tokens. On GPUs there is one piece, because small ones do not fill the device. `least` must be
// the same on all ranks, because pieces are messages.
at::Tensor InPieces(const std::vector<Cuttable>& all, int64_t least, const RowSegment& row,
                    const at::Tensor& like,
                    const std::function<at::Tensor(const Piece& piece)>& run);

// Returns the transition of a segment, given the product of its tokens' transitions: rows in which
// a document starts inside the segment get -inf in `log_transition` [N, C, ...], or zeros in
// `matrix` [N, C, K, K].
at::Tensor CutByStarts(const at::Tensor& log_transition, const RowSegment& row);
at::Tensor CutMatrixByStarts(const at::Tensor& matrix, const RowSegment& row);

}  // namespace halflife::ops
