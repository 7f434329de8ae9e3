#include "ops/sequence/segment_scan.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "core/error.h"
#include "ops/torch/side_by_side.h"

namespace halflife::ops {
namespace {

// The data kept from forward to backward: the autograd graph of the segment, whose leaves are
// copies of the inputs and of the state before.
struct Kept {
  Tensors inputs;
  SegmentState before;
  ScannedSegment segment;
  Transition transition;  // from `before` to the state after
  at::Tensor rescaled;    // [N, C]: exchanged log scale to that of segment.after, as a factor
  GradientBefore gradient_before;
};

Tensors AsLeaves(const Tensors& tensors, const std::vector<bool>& wanted) {
  Tensors leaves;
  for (size_t i = 0; i < tensors.size(); ++i)
    leaves.push_back(tensors[i].defined() ? tensors[i].detach().requires_grad_(wanted[i])
                                          : at::Tensor());
  return leaves;
}

// For states with log scales. The ranks exchange the gradient of values at the scale `agreed`; this
// factor converts it to a gradient of the values at the segment's `own` scale.
at::Tensor Rescaled(const SegmentState& own, const SegmentState& agreed) {
  const at::Tensor factor = (own.log_scale - agreed.log_scale).exp();
  return at::where(own.log_scale.isneginf().logical_or(agreed.log_scale.isneginf()), 0, factor)
      .to(own.values[0].scalar_type());
}

// Keeps what backward needs of the transition. Of the first and the last segment only the shape is
// kept, because their transitions are never read. These segments need no rescaling either: the
// first state is exchanged at its own scale, and the last one is not exchanged.
void KeepTransition(const SegmentSummary& summary, const RowSegment& row, Kept& kept) {
  if (row.is_first() || row.is_last()) {
    const at::ScalarType dtype = summary.own.values[0].scalar_type();
    kept.transition = {.factor = at::zeros_like(summary.transition(), dtype),
                       .is_dense = summary.is_dense()};
    return;
  }
  const Passed passed = PassThrough(summary, kept.before);
  kept.transition = passed.transition;
  if (passed.after.log_scale.defined()) kept.rescaled = Rescaled(kept.segment.after, passed.after);
}

Tensors DifferentiableOutputs(const ScannedSegment& segment) {
  return {segment.outputs.begin(),
          segment.outputs.end() - static_cast<std::ptrdiff_t>(segment.num_constant)};
}

// `gradients` of `like`, with zeros for tensors that no path of the graph reaches.
Tensors OrZeros(Tensors gradients, const Tensors& like) {
  gradients.resize(like.size());
  for (size_t i = 0; i < like.size(); ++i)
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(like[i]);
  return gradients;
}

// dL/d(values before) through this rank's outputs only. On the first rank the result is zeros, for
// their shapes.
Tensors LocalGradient(const Kept& kept, const Tensors& douts, const RowSegment& row) {
  if (row.is_first()) return OrZeros({}, kept.segment.after.values);
  if (kept.gradient_before) return kept.gradient_before(kept.before, kept.segment.outputs, douts);
  return OrZeros(Differentiate(DifferentiableOutputs(kept.segment), douts, kept.before.values,
                               /*keep_graph=*/true),
                 kept.before.values);
}

// Spreads `found`, the gradients of the requested inputs, over the list of all inputs.
Tensors OfInputs(const Tensors& found, const std::vector<bool>& wanted) {
  Tensors gradients;
  for (size_t i = 0, next = 0; i < wanted.size(); ++i)
    gradients.push_back(wanted[i] ? found[next++] : at::Tensor());
  return gradients;
}

// Runs the backward of the last rank, which receives no gradient from later segments. One backward
// pass gives the gradients of its inputs and the gradient of the state before, for which the
// earlier ranks wait.
Tensors BackwardOfLast(const Kept& kept, const Tensors& wanted, const Tensors& douts,
                       const RowSegment& row) {
  Tensors all = wanted;
  all.insert(all.end(), kept.before.values.begin(), kept.before.values.end());
  Tensors found = Differentiate(DifferentiableOutputs(kept.segment), douts, all,
                                /*keep_graph=*/false);
  const auto end_of_wanted = found.begin() + static_cast<std::ptrdiff_t>(wanted.size());
  GradientAfter(OrZeros({end_of_wanted, found.end()}, kept.segment.after.values), kept.transition,
                row);
  found.resize(wanted.size());
  return found;
}

// Takes `kept` by value and so frees it: other nodes of the graph may live longer than this one.
Tensors SegmentBackward(Kept kept, const RowSegment& row, const BackwardCall& call) {
  HL_CHECK(!kept.inputs.empty(), "a second backward through a segment of a row");
  Tensors outputs = DifferentiableOutputs(kept.segment);
  Tensors douts(call.grads.begin(),
                call.grads.begin() + static_cast<std::ptrdiff_t>(outputs.size()));
  Tensors wanted;
  for (size_t i = 0; i < kept.inputs.size(); ++i)
    if (call.wanted[i]) wanted.push_back(kept.inputs[i]);
  if (row.is_last()) return OfInputs(BackwardOfLast(kept, wanted, douts, row), call.wanted);
  const Tensors dafter = GradientAfter(LocalGradient(kept, douts, row), kept.transition, row);
  for (size_t i = 0; i < dafter.size(); ++i) {
    at::Tensor gradient = dafter[i];
    if (kept.rescaled.defined()) {
      const at::Tensor factor = UnsqueezeLike(kept.rescaled, gradient);
      gradient = at::where(factor == 0, 0, factor * gradient);
    }
    outputs.push_back(kept.segment.after.values[i]);
    douts.push_back(gradient);
  }
  return OfInputs(Differentiate(outputs, douts, wanted, /*keep_graph=*/false), call.wanted);
}

// Runs the segment from the state before it.
void Run(const SegmentScan& scan, bool differentiated, Kept& kept) {
  kept.before.values =
      AsLeaves(kept.before.values, std::vector<bool>(kept.before.values.size(), differentiated));
  const c10::AutoGradMode with_graph(differentiated);
  kept.segment = scan.run(kept.inputs, kept.before);
}

bool HaveOneForm(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

// Returns the summary that this rank sends. The first rank takes it from its run. No rank reads
// that of the last one, so it has only the right shapes.
SegmentSummary SummaryOf(const SegmentScan& scan, const RowSegment& row, const Kept& kept) {
  if (!row.is_first() && !row.is_last()) return scan.summarise();
  SegmentSummary summary = scan.nothing();
  if (!row.is_first()) return summary;
  const SegmentState& after = kept.segment.after;
  SegmentState own = {.values = {}, .log_scale = after.log_scale};
  for (const at::Tensor& x : after.values) own.values.push_back(x.detach());
  HL_CHECK(std::ranges::equal(own.values, summary.own.values, HaveOneForm) &&
               HaveOneForm(own.log_scale, summary.own.log_scale),
           scan.name, ": a state after the first segment of another form than all segments'");
  summary.own = std::move(own);
  return summary;
}

// Concatenates pieces along C to [B, T, C, ...]. If they are columns of one matrix already, the
// result is that matrix and nothing is copied.
at::Tensor Joined(const Tensors& pieces, at::IntArrayRef whole) {
  Tensors columns;
  for (const at::Tensor& piece : pieces) columns.push_back(piece.flatten(0, 1).flatten(1));
  return ColumnsAsOne(columns).view(whole);
}

// Returns the pieces of `whole` along C, of these sizes, as views.
Tensors CutChannels(const at::Tensor& whole, const std::vector<int64_t>& sizes) {
  if (sizes.size() == 1) return {whole};
  const auto backward = [shape = whole.sizes().vec()](const BackwardCall& call) -> Tensors {
    return {Joined(call.grads, shape)};
  };
  const auto forward = [&]() -> Forwarded {
    return {.outputs = whole.split_with_sizes(sizes, 2), .saved = {}, .backward = backward};
  };
  return Apply({.name = "CutChannels", .inputs = {whole}, .forward = forward});
}

// Joins pieces along C: the inverse of CutChannels.
at::Tensor JoinChannels(const Tensors& pieces, const std::vector<int64_t>& sizes,
                        at::IntArrayRef whole) {
  if (sizes.size() == 1) return pieces[0];
  const auto backward = [sizes](const BackwardCall& call) -> Tensors {
    return call.grads[0].split_with_sizes(sizes, 2);
  };
  const auto forward = [&]() -> Forwarded {
    return {.outputs = {Joined(pieces, whole)}, .saved = {}, .backward = backward};
  };
  return Apply({.name = "JoinChannels", .inputs = pieces, .forward = forward})[0];
}

// Places for pieces of `sizes` channels along C of a tensor [B, T, C, ...].
std::shared_ptr<SharedMatrix> MatrixOfPieces(const at::Tensor& whole,
                                             const std::vector<int64_t>& sizes) {
  int64_t width = 1;  // of a channel
  for (int64_t dim = 3; dim < whole.dim(); ++dim) width *= whole.size(dim);
  std::vector<int64_t> widths;
  for (const int64_t size : sizes) widths.push_back(size * width);
  return std::make_shared<SharedMatrix>(std::move(widths));
}

}  // namespace

Tensors RunSegment(const SegmentScan& scan, const RowSegment& row) {
  row.group->RecordRead();
  std::vector<bool> wanted;
  for (const at::Tensor& x : scan.inputs)
    wanted.push_back(c10::GradMode::is_enabled() && x.defined() && x.requires_grad());
  const bool differentiated = std::count(wanted.begin(), wanted.end(), true) > 0;
  const auto forward = [&]() -> Forwarded {
    const auto kept = std::make_shared<Kept>();
    kept->inputs = AsLeaves(scan.inputs, wanted);
    if (row.is_first()) Run(scan, differentiated, *kept);
    const SegmentSummary summary = SummaryOf(scan, row, *kept);
    SegmentState before = StateBefore(summary, row);
    if (!row.is_first()) {
      kept->before = std::move(before);
      Run(scan, differentiated, *kept);
    }
    Forwarded result = {
        .outputs = {}, .saved = {}, .backward = {}, .num_constant = kept->segment.num_constant};
    for (const at::Tensor& x : kept->segment.outputs) result.outputs.push_back(x.detach());
    if (!differentiated) return result;
    KeepTransition(summary, row, *kept);
    kept->gradient_before = scan.gradient_before;
    result.backward = [row, kept](const BackwardCall& call) {
      return SegmentBackward(std::exchange(*kept, Kept()), row, call);
    };
    return result;
  };
  return Apply({.name = scan.name, .inputs = scan.inputs, .forward = forward});
}

at::Tensor InPieces(const std::vector<Cuttable>& all, int64_t least, const RowSegment& row,
                    const at::Tensor& like, const std::function<at::Tensor(const Piece&)>& run) {
  // With four pieces a rank waits for a quarter of a scan, and the messages still cost little.
  constexpr int64_t kMaxPieces = 4;
  const int64_t num_channels = all[0].tensor.size(2);
  const int64_t num_pieces =
      row.threads == 0 ? 1 : std::clamp<int64_t>(num_channels / least, 1, kMaxPieces);
  std::vector<int64_t> sizes;
  for (int64_t piece = 0; piece < num_pieces; ++piece)
    sizes.push_back(num_channels * (piece + 1) / num_pieces - num_channels * piece / num_pieces);
  std::vector<Piece> pieces(num_pieces);
  for (const Cuttable& whole : all) {
    const Tensors cut = whole.of_tokens ? CutChannels(whole.tensor, sizes)
                                        : whole.tensor.split_with_sizes(sizes, 0);
    const auto columns = whole.of_tokens ? MatrixOfPieces(whole.tensor, sizes) : nullptr;
    for (int64_t piece = 0; piece < num_pieces; ++piece) {
      pieces[piece].tensors.push_back(cut[piece]);
      pieces[piece].gradients.push_back({.columns = columns, .part = static_cast<size_t>(piece)});
    }
  }
  Tensors outputs;
  const auto columns = MatrixOfPieces(like, sizes);
  for (size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].output = {.columns = columns, .part = i};
    outputs.push_back(run(pieces[i]));
  }
  return JoinChannels(outputs, sizes, like.sizes());
}

at::Tensor CutByStarts(const at::Tensor& log_transition, const RowSegment& row) {
  if (!row.has_start.defined()) return log_transition;
  return log_transition.masked_fill(UnsqueezeLike(row.has_start, log_transition),
                                    -std::numeric_limits<double>::infinity());
}

at::Tensor CutMatrixByStarts(const at::Tensor& matrix, const RowSegment& row) {
  if (!row.has_start.defined()) return matrix;
  return matrix.masked_fill(UnsqueezeLike(row.has_start, matrix), 0);
}

}  // namespace halflife::ops
