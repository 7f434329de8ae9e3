// A scan over rows that lie on several ranks, from what computes it over one segment: each rank
// sums its tokens up, the states before all segments follow from the sums, and each rank runs its
// segment from there. In backward the same way back.
//
// The ends of a row go over their tokens once: nothing comes before the first segment, so that its
// run has its sum, and nobody asks for the last one's. So the last rank waits for the first one's
// run, but in the first layer only: from then on the first rank is ahead. In backward the last is.
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

#include "kernels/sequence/state_exchange.h"
#include "kernels/torch/column_places.h"

namespace halflife::kernels {

struct ScannedSegment {
  Tensors outputs;
  size_t num_constant = 0;  // outputs, the last ones, that no gradient goes through
  // After the segment. Its log scale is no gradient's business: with it held fixed the values have
  // all of it.
  SegmentState after;
};

// dL/d(values before) through the outputs alone, from those and their gradients (of constant ones
// none). Kept until backward.
using GradientBefore = std::function<Tensors(const SegmentState& before, const Tensors& outputs,
                                             const Tensors& doutputs)>;

struct SegmentScan {
  const char* name = "";  // what LibTorch's messages call it
  Tensors inputs;         // that a gradient may be wanted of; undefined: absent
  // The segment of `inputs` from the state before it, without values: from nothing. Differentiable
  // in the inputs and the values.
  std::function<ScannedSegment(const Tensors& inputs, const SegmentState& before)> run;
  // The segment alone, on ranks between others. Runs without gradients.
  std::function<SegmentSummary()> summarise;
  // A summary of the same shapes and dtypes, whatever it holds.
  std::function<SegmentSummary()> nothing;
  GradientBefore gradient_before = {};  // where it costs less than a backward of `run`
};

// The outputs of this rank's segment. All ranks call it, and all its backward.
Tensors RunSegment(const SegmentScan& scan, const RowSegment& row);

// [B, T, C, ...], or of channels alone: [C, ...]. C counts channels, or heads.
struct Cuttable {
  at::Tensor tensor;
  bool of_tokens;
};
struct Piece {
  Tensors tensors;  // in the order of the Cuttables
  // By tensor, of those of tokens: where the gradient may go, as columns of one matrix, so that
  // nobody puts the pieces' together. Likewise the output.
  std::vector<ColumnPlace> gradients;
  ColumnPlace output;
};
// Of a piece that vectors go through: their lanes.
constexpr int64_t kLeastChannels = 16;
// A scan whose channels do not meet, of pieces of them one after another, of `least` channels or
// more: `run` gives of one piece what corresponds to it in `like`, a tensor of tokens; returns the
// whole, of the shape of `like`. The first tensor is of tokens. A rank then waits for the first
// piece of the one before it: on a processor, where a scan is much of a layer. On a GPU one piece,
// as several small ones would not fill it. `least` is the same on all ranks: pieces are messages.
at::Tensor InPieces(const std::vector<Cuttable>& all, int64_t least, const RowSegment& row,
                    const at::Tensor& like,
                    const std::function<at::Tensor(const Piece& piece)>& run);

// -inf where a document starts inside the segment, else `log_transition` [N, C, ...].
at::Tensor CutByStarts(const at::Tensor& log_transition, const RowSegment& row);

}  // namespace halflife::kernels
