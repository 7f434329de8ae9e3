#include "ops/scans/selective_scan.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "kernels/common/sum_partials.h"
#include "kernels/scans/selective_scan/selective_scan_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

// With fewer tokens, starting threads costs more time than they save.
constexpr int64_t kTokensOfOneThread = 256;

// Operands of forward and backward. They are contiguous, except that b and c, and on the CPU x and
// delta, may have any constant row stride. starts and initial may be undefined.
struct ScanOperands {
  at::Tensor x, delta, delta_bias, a, b, c, skip, starts, initial;
  bool negative_exp = false;

  template <typename T, typename C>
  kernels::ScanShape<T, C> Shape() const {
    return {.x = Elements<T>(x),
            .delta = Elements<T>(delta),
            .delta_bias = Elements<C>(delta_bias),
            .a = Elements<C>(a),
            .b = Elements<T>(b),
            .c = Elements<T>(c),
            .skip = Elements<C>(skip),
            .starts = Elements<bool>(starts),
            .initial = Elements<C>(initial),
            .batch = x.size(0),
            .seq_len = x.size(1),
            .channels = x.size(2),
            .states = a.size(1),
            .token_stride = RowStride(b).value(),
            .x_stride = RowStride(x).value(),
            .delta_stride = RowStride(delta).value(),
            .negative_exp = negative_exp};
  }
  kernels::cuda::ScanSizes sizes() const { return {x.size(0), x.size(1), x.size(2), a.size(1)}; }
  int64_t tiles() const {
    return kernels::ScanTiles(x.size(1),
                              RunsOnCuda(x) ? kernels::cuda::kScanTile : kernels::cpu::kScanTile);
  }
};

struct SelectiveScanOp {
  struct Inputs {
    at::Tensor x, delta, delta_bias, a, b, c, skip, initial;
  };
  struct Outputs {
    at::Tensor y, final;
  };
  struct Saved {
    at::Tensor x, delta;
    at::Tensor delta_bias, a, b, c, skip;  // as they were given
    at::Tensor starts, initial;
    at::Tensor kept;  // states
  };
};

// Calls run(item, scratch) for every block of channels of every sequence. Each thread has its own
// scratch memory.
template <typename Run>
void ForItems(const ScanOperands& in, const Run& run) {
  const int64_t items = in.x.size(0) * kernels::cpu::ScanBlocks(in.x.size(2));
  const int64_t bytes =
      kernels::cpu::ScanScratchBytes(in.a.size(1), in.x.scalar_type() == at::kDouble);
  at::parallel_for(0, items, 1, [&](int64_t begin, int64_t end) {
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    std::vector<Line> scratch(static_cast<size_t>((bytes + 63) / 64));
    for (int64_t item = begin; item < end; ++item) run(item, static_cast<void*>(scratch.data()));
  });
}

template <typename T, typename C>
void ForwardOn(const ScanOperands& in, const kernels::ScanResults<T, C>& results) {
  const kernels::ScanShape<T, C> shape = in.Shape<T, C>();
  RunOn(
      in.x,
      [&] {
        ForItems(in, [&](int64_t item, void* scratch) {
          kernels::cpu::ScanForward(shape, results, item, scratch);
        });
      },
      [&](auto stream) {
        if constexpr (std::is_same_v<C, float>) {
          const at::Tensor workspace =
              at::empty({kernels::cuda::ScanForwardWorkspaceFloats(in.sizes())}, in.a.options());
          kernels::cuda::ScanForward(shape, results, MutableElements<float>(workspace), stream);
        }
      });
}

// Gradients of the weights a [I, N], skip [I] and delta_bias [I], in the compute type.
struct WeightGrads {
  const GradientBuffer &a, &skip, &delta_bias;
};

template <typename C>
void BackwardOnCpu(const ScanOperands& in, const auto& shape, const auto& grads,
                   const WeightGrads& weights) {
  const int64_t batch = shape.batch, channels = shape.channels, of_a = shape.states * channels,
                tokens = batch * shape.seq_len * shape.states,
                blocks = kernels::cpu::ScanBlocks(channels);
  std::vector<C> da(batch * of_a), da_sum(of_a), dskip(batch * channels), dbias(batch * channels),
      db(blocks * tokens), dc(blocks * tokens);
  const kernels::cpu::ScanPartials<C> partials = {.da = da.data(),
                                                  .dskip = dskip.data(),
                                                  .ddelta_bias = dbias.data(),
                                                  .db = db.data(),
                                                  .dc = dc.data()};
  ForItems(in, [&](int64_t item, void* scratch) {
    kernels::cpu::ScanBackward(shape, grads, partials, item, scratch);
  });
  const auto sum = [](const GradientBuffer& place) { return MutableElements<C>(place.sum()); };
  // The partial sums are added up before they reach the gradient. Adding sequence by sequence would
  // round each to the magnitude of a gradient that was accumulated over many micro-batches.
  kernels::cpu::SumPartials(da.data(), batch, of_a, da_sum.data());
  kernels::cpu::SumPartials(
      da_sum.data(), 1,
      {{.out = sum(weights.a), .size = of_a, .added = weights.a.added(), .rows = shape.states}});
  kernels::cpu::SumPartials(dskip.data(), batch, channels, sum(weights.skip), weights.skip.added());
  kernels::cpu::SumPartials(dbias.data(), batch, channels, sum(weights.delta_bias),
                            weights.delta_bias.added());
  at::parallel_for(0, batch * shape.seq_len, kTokensOfOneThread, [&](int64_t begin, int64_t end) {
    kernels::cpu::ScanSumTokens(shape, grads, partials, begin, end);
  });
}

template <typename T, typename C>
void BackwardOn(const ScanOperands& in, const kernels::ScanGrads<T, C>& grads,
                const WeightGrads& weights) {
  const kernels::ScanShape<T, C> shape = in.Shape<T, C>();
  RunOn(
      in.x, [&] { BackwardOnCpu<C>(in, shape, grads, weights); },
      [&](auto stream) {
        if constexpr (std::is_same_v<C, float>) {
          const at::Tensor workspace =
              at::empty({kernels::cuda::ScanBackwardWorkspaceFloats(in.sizes())}, in.a.options());
          kernels::cuda::ScanBackward(
              shape, grads,
              {.da = MutableElements<float>(weights.a.sum()),
               .dskip = MutableElements<float>(weights.skip.sum()),
               .ddelta_bias = MutableElements<float>(weights.delta_bias.sum()),
               .a_added = weights.a.added(),
               .skip_added = weights.skip.added(),
               .bias_added = weights.delta_bias.added()},
              MutableElements<float>(workspace), stream);
        }
      });
}

// Converts a per-channel weight to the form that the kernels read.
at::Tensor ToScanWeight(const at::Tensor& weight, const at::Tensor& x) {
  return weight.to(ComputeType(x)).contiguous();
}

ScanOperands Prepare(const SelectiveScanInputs& in) {
  const auto activation = [&](const at::Tensor& y) { return y.to(in.x.scalar_type()); };
  ScanOperands operands = {.x = StridedRows(in.x),  // segments pass blocks of channels
                           .delta = StridedRows(in.delta),
                           .delta_bias = ToScanWeight(in.delta_bias, in.x),
                           .a = ToScanWeight(in.a, in.x),
                           .b = activation(in.b),
                           .c = activation(in.c),
                           .skip = ToScanWeight(in.skip, in.x),
                           .starts = Contiguous(in.starts),
                           .initial = Contiguous(in.initial),
                           .negative_exp = in.negative_exp};
  at::Tensor &b = operands.b, &c = operands.c;
  if (!RowStride(b).has_value() || RowStride(b) != RowStride(c))
    b = b.contiguous(), c = c.contiguous();
  return operands;
}

// Output buffers of the gradients.
struct GradientColumns {
  ColumnSlice x, delta, b, c;

  // Returns the buffers for the gradients of b and c, which must have the same row stride.
  std::array<at::Tensor, 2> OfStates(const ScanOperands& in) const {
    const at::Tensor db = b.EmptyLike(in.b), dc = c.EmptyLike(in.c);
    if (RowStride(db) == RowStride(dc)) return {db, dc};
    return {ColumnSlice().EmptyLike(in.b), ColumnSlice().EmptyLike(in.c)};
  }
};

SelectiveScanOp::Inputs RunBackward(const BackwardOf<SelectiveScanOp>& call, bool negative_exp,
                                    const GradientColumns& places) {
  using Inputs = SelectiveScanOp::Inputs;
  const SelectiveScanOp::Saved& saved = call.saved;
  const ScanOperands in = Prepare({.x = saved.x,
                                   .delta = saved.delta,
                                   .delta_bias = saved.delta_bias,
                                   .a = saved.a,
                                   .negative_exp = negative_exp,
                                   .b = saved.b,
                                   .c = saved.c,
                                   .skip = saved.skip,
                                   .starts = saved.starts,
                                   .initial = saved.initial});
  const at::Tensor dy =
      call.grads.y.defined() ? StridedRows(call.grads.y) : at::zeros(in.x.sizes(), in.x.options());
  const at::Tensor dfinal = Contiguous(call.grads.final);
  const auto place_of = [&](const at::Tensor& weight, at::Tensor Inputs::*input) {
    return GradientBuffer(weight, call.Wants(input), ComputeType(in.x));
  };
  GradientBuffer delta_bias = place_of(saved.delta_bias, &Inputs::delta_bias),
                 a = place_of(saved.a, &Inputs::a), skip = place_of(saved.skip, &Inputs::skip);
  const WeightGrads weights = {.a = a, .skip = skip, .delta_bias = delta_bias};
  const auto [db, dc] = places.OfStates(in);
  const at::Tensor dx = EmptyIn(places.x, in.x), ddelta = EmptyIn(places.delta, in.x),
                   dinitial = in.initial.defined()
                                  ? at::empty(in.initial.sizes(), in.initial.options())
                                  : at::Tensor();
  if (in.x.size(1) == 0 && dinitial.defined()) {  // no kernel runs, so none would write it
    dinitial.zero_();
    if (dfinal.defined()) dinitial.copy_(dfinal);
  }
  WithStorageAndArithmetic(in.x, [&]<typename T, typename C>() {
    BackwardOn<T, C>(in,
                     {.kept = Elements<C>(saved.kept),
                      .dy = Elements<T>(dy),
                      .dy_stride = RowStride(dy).value(),
                      .dfinal = Elements<C>(dfinal),
                      .dx = MutableElements<T>(dx),
                      .dx_stride = RowStride(dx).value(),
                      .ddelta = MutableElements<T>(ddelta),
                      .ddelta_stride = RowStride(ddelta).value(),
                      .dinitial = MutableElements<C>(dinitial),
                      .db = MutableElements<T>(db),
                      .dc = MutableElements<T>(dc),
                      .token_stride = RowStride(db).value()},
                     weights);
  });
  return {.x = dx,
          .delta = ddelta,
          .delta_bias = delta_bias.Finish(),
          .a = a.Finish(),
          .b = db.to(saved.b.scalar_type()),
          .c = dc.to(saved.c.scalar_type()),
          .skip = skip.Finish(),
          .initial = dinitial};
}

void Check(const SelectiveScanInputs& in) {
  const at::Tensor& x = in.x;
  CheckDTypes("SelectiveScan", {x, in.delta, in.delta_bias, in.a, in.b, in.c, in.skip});
  HL_CHECK(x.defined() && x.dim() == 3 && IsLike(x, in.delta) && (x.is_cpu() || HasFusedDtype(x)),
           "SelectiveScan got x ", Describe(x), " and delta ", Describe(in.delta),
           ". Use [B, T, I] of one dtype and device for both, fp64 only on the CPU.");
  const int64_t batch = x.size(0), seq_len = x.size(1), channels = x.size(2);
  const int64_t states = in.a.defined() && in.a.dim() == 2 ? in.a.size(1) : 0;
  const auto fits = [&](const at::Tensor& y, at::IntArrayRef shape) {
    return FitsWith(x, y, shape);
  };
  HL_CHECK(states >= 1 && states <= kernels::kScanMaxStates && fits(in.a, {channels, states}) &&
               fits(in.delta_bias, {channels}) && fits(in.skip, {channels}),
           "SelectiveScan got x ", Describe(x), " with a ", Describe(in.a), ", delta_bias ",
           Describe(in.delta_bias), " and skip ", Describe(in.skip), ". Use [I, N] with N of 1 to ",
           kernels::kScanMaxStates, ", [I] and [I] on the same device.");
  HL_CHECK(fits(in.b, {batch, seq_len, states}) && fits(in.c, {batch, seq_len, states}),
           "SelectiveScan got x ", Describe(x), " and a ", Describe(in.a), " with b ",
           Describe(in.b), " and c ", Describe(in.c), ". Use [B, T, N] on the same device.");
  HL_CHECK(!in.starts.defined() ||
               (fits(in.starts, {batch, seq_len}) && in.starts.scalar_type() == at::kBool),
           "SelectiveScan got x ", Describe(x), " with starts ", Describe(in.starts),
           ". Use [B, T] bool on the same device, or none.");
  HL_CHECK(!in.initial.defined() || (fits(in.initial, {batch, channels, states}) &&
                                     in.initial.scalar_type() == ComputeType(x)),
           "SelectiveScan got x ", Describe(x), " with a state ", Describe(in.initial),
           ". Use [B, I, N] ", DTypeName(ComputeType(x)), " on the same device, or none.");
}

}  // namespace

SelectiveScanOutputs SelectiveScan(const SelectiveScanInputs& inputs) {
  Check(inputs);
  if (inputs.segment != nullptr) return OverSegments(inputs);
  const SelectiveScanOp::Inputs operands = {.x = inputs.x,
                                            .delta = inputs.delta,
                                            .delta_bias = inputs.delta_bias,
                                            .a = inputs.a,
                                            .b = inputs.b,
                                            .c = inputs.c,
                                            .skip = inputs.skip,
                                            .initial = inputs.initial};
  const bool keep = WillBeDifferentiated(operands);
  const auto forward = [&]() -> ForwardOf<SelectiveScanOp> {
    const ScanOperands in = Prepare(inputs);
    const int64_t batch = in.x.size(0), channels = in.x.size(2), states = in.a.size(1);
    const at::Tensor y = EmptyIn(inputs.y_place, in.x);
    // Without tokens no kernel runs.
    const at::Tensor final = in.x.size(1) > 0 ? at::empty({batch, channels, states}, in.a.options())
                             : in.initial.defined()
                                 ? in.initial.clone()
                                 : at::zeros({batch, channels, states}, in.a.options());
    at::Tensor kept;
    if (keep) kept = at::empty({batch, in.tiles(), states, channels}, in.a.options());
    WithStorageAndArithmetic(in.x, [&]<typename T, typename C>() {
      if (in.x.size(1) == 0) return;
      ForwardOn<T, C>(in, {.y = MutableElements<T>(y),
                           .y_stride = RowStride(y).value(),
                           .final = MutableElements<C>(final),
                           .kept = MutableElements<C>(kept)});
    });
    const GradientColumns places = {.x = inputs.x_gradient,
                                    .delta = inputs.delta_gradient,
                                    .b = inputs.b_gradient,
                                    .c = inputs.c_gradient};
    const auto backward = [negative_exp = inputs.negative_exp, places](const auto& call) {
      return RunBackward(call, negative_exp, places);
    };
    return {.outputs = {.y = y, .final = final},
            .saved = {.x = in.x,
                      .delta = in.delta,
                      .delta_bias = inputs.delta_bias,
                      .a = inputs.a,
                      .b = inputs.b,
                      .c = inputs.c,
                      .skip = inputs.skip,
                      .starts = in.starts,
                      .initial = in.initial,
                      .kept = kept},
            .backward = backward};
  };
  const auto [y, final] = Apply<SelectiveScanOp>(
      {.name = "SelectiveScan", .inputs = operands, .undefined_grads = true, .forward = forward});
  return {.y = y, .final = final};
}

at::Tensor SelectiveScanStep(const SelectiveScanStepInputs& inputs, at::Tensor& state) {
  for (const at::Tensor* x : {&inputs.x, &inputs.delta, &inputs.b, &inputs.c})
    HL_CHECK(x->defined() && x->dim() == 2, "SelectiveScanStep of ", Describe(*x),
             ". Use [B, I] for x and delta and [B, N] for b and c.");
  HL_CHECK(state.defined() && state.is_contiguous(), "SelectiveScanStep got a state ",
           Describe(state), ". Use a contiguous [B, I, N]: it is updated in place.");
  const SelectiveScanInputs token = {.x = inputs.x.unsqueeze(1),
                                     .delta = inputs.delta.unsqueeze(1),
                                     .delta_bias = inputs.delta_bias,
                                     .a = inputs.a,
                                     .negative_exp = inputs.negative_exp,
                                     .b = inputs.b.unsqueeze(1),
                                     .c = inputs.c.unsqueeze(1),
                                     .skip = inputs.skip,
                                     .starts = {},
                                     .initial = state};
  Check(token);
  const c10::AutoGradMode no_grad(false);
  const ScanOperands in = Prepare(token);
  const at::Tensor y = at::empty(in.x.sizes(), in.x.options());
  WithStorageAndArithmetic(in.x, [&]<typename T, typename C>() {
    ForwardOn<T, C>(in, {.y = MutableElements<T>(y),
                         .y_stride = RowStride(y).value(),
                         .final = MutableElements<C>(state),
                         .kept = nullptr});
  });
  return y.squeeze(1);
}

}  // namespace halflife::ops
