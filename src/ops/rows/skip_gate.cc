#include "ops/rows/skip_gate.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "kernels/common/cpu/sum_partials.h"
#include "kernels/rows/skip_gate_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

struct SkipGateOp {
  struct Inputs {
    at::Tensor y, x, skip, gate;
  };
  struct Outputs {
    at::Tensor out;
  };
  struct Saved {
    at::Tensor y, x;
    at::Tensor skip;  // as it was given, because its sink is found by tensor identity
    at::Tensor gate;
  };
};

at::Tensor WithRowStride(const at::Tensor& x) {
  return !x.defined() || RowStride(x).has_value() ? x : x.contiguous();
}

// `in` has a contiguous y and skip, and rows at a constant distance in x and gate.
template <typename T>
kernels::SkipGateRows<T> SkipGateRowsOf(const SkipGateOp::Saved& in, const at::Tensor& skip) {
  return {.y = Elements<T>(in.y),
          .x = Elements<T>(in.x),
          .gate = Elements<T>(in.gate),
          .skip = Elements<float>(skip),
          .num_rows = NumRows(in.y),
          .num_heads = skip.numel(),
          .head_dim = in.y.size(-1) / skip.numel(),
          .x_stride = RowStride(in.x).value(),
          .gate_stride = in.gate.defined() ? RowStride(in.gate).value() : 0};
}

at::Tensor SkipGateForwardFused(const SkipGateOp::Saved& in) {
  const at::Tensor out = at::empty(in.y.sizes(), in.y.options()), skip = in.skip.contiguous();
  WithStorage(out, [&]<typename T>() {
    kernels::SkipGateRows<T> rows = SkipGateRowsOf<T>(in, skip);
    rows.out = MutableElements<T>(out);
    RunOn(
        out,
        [&] {
          at::parallel_for(
              0, rows.num_rows, kernels::cpu::kSkipGateRowsPerBlock,
              [&](int64_t begin, int64_t end) { kernels::cpu::SkipGateForward(rows, begin, end); });
        },
        [&](auto stream) { kernels::cuda::SkipGateForward(rows, stream); });
  });
  return out;
}

template <typename T>
void SkipGateBackwardOnCpu(const kernels::SkipGateGradRows<T>& rows, float* dskip, bool added) {
  constexpr int64_t kRows = kernels::cpu::kSkipGateRowsPerBlock;
  const int64_t num_rows = rows.forward.num_rows, num_heads = rows.forward.num_heads;
  const int64_t num_blocks = (num_rows + kRows - 1) / kRows;
  std::vector<float> partial(num_blocks * num_heads);
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      kernels::cpu::SkipGateBackward(rows, block * kRows, std::min(num_rows, (block + 1) * kRows),
                                     partial.data() + block * num_heads);
  });
  kernels::cpu::SumPartials(partial.data(), num_blocks, num_heads, dskip, added);
}

SkipGateOp::Inputs SkipGateBackwardFused(const BackwardOf<SkipGateOp>& call,
                                         const ColumnSlice& place) {
  const SkipGateOp::Saved& in = call.saved;
  const at::Tensor dout = call.grads.out.contiguous(), skip = in.skip.contiguous();
  const at::Tensor dy = at::empty(in.y.sizes(), in.y.options()),
                   dx = at::empty(in.y.sizes(), in.y.options()),
                   dgate = in.gate.defined() ? place.EmptyLike(in.gate) : at::Tensor();
  GradientBuffer sum(in.skip, call.Wants(&SkipGateOp::Inputs::skip));
  auto* const dskip = MutableElements<float>(sum.sum());
  WithStorage(dout, [&]<typename T>() {
    const kernels::SkipGateGradRows<T> rows = {
        .forward = SkipGateRowsOf<T>(in, skip),
        .dout = Elements<T>(dout),
        .dy = MutableElements<T>(dy),
        .dx = MutableElements<T>(dx),
        .dgate = MutableElements<T>(dgate),
        .dgate_stride = dgate.defined() ? RowStride(dgate).value() : 0};
    RunOn(
        dout, [&] { SkipGateBackwardOnCpu(rows, dskip, sum.added()); },
        [&](auto stream) {
          const at::Tensor partials = at::empty(
              {kernels::cuda::NumSkipGatePartials(rows.forward.num_rows) * rows.forward.dim()},
              skip.options());
          kernels::cuda::SkipGateBackward(rows, dskip, sum.added(),
                                          MutableElements<float>(partials), stream);
        });
  });
  return {.y = dy, .x = dx, .skip = sum.Finish(), .gate = dgate};
}

at::Tensor SkipGateFused(const SkipGateInputs& in) {
  const auto forward = [&]() -> ForwardOf<SkipGateOp> {
    const SkipGateOp::Saved saved = {.y = in.y.contiguous(),
                                     .x = WithRowStride(in.x),
                                     .skip = in.skip,
                                     .gate = WithRowStride(in.gate)};
    return {.outputs = {.out = SkipGateForwardFused(saved)},
            .saved = saved,
            .backward = [place = in.gate_gradient](const auto& call) {
              return SkipGateBackwardFused(call, place);
            }};
  };
  return Apply<SkipGateOp>({.name = "SkipGate",
                            .inputs = {.y = in.y, .x = in.x, .skip = in.skip, .gate = in.gate},
                            .forward = forward})
      .out;
}

}  // namespace

at::Tensor SkipGate(const SkipGateInputs& in) {
  CheckDTypes("SkipGate", {in.y, in.x, in.skip, in.gate});
  const bool fits = in.y.defined() && in.y.dim() >= 1 && IsLike(in.y, in.x) &&
                    (!in.gate.defined() || IsLike(in.y, in.gate)) && in.skip.defined() &&
                    in.skip.dim() == 1 && in.skip.numel() > 0 &&
                    in.y.size(-1) % in.skip.numel() == 0 && in.skip.device() == in.y.device();
  HL_CHECK(fits, "SkipGate got y ", Describe(in.y), " with x ", Describe(in.x), ", skip ",
           Describe(in.skip), " and gate ", Describe(in.gate),
           ". Use y, x and gate [..., H P] of one dtype and skip [H], on one device.");
  if (IsFused(in.y) && in.skip.scalar_type() == at::kFloat) return SkipGateFused(in);
  const at::ScalarType compute = ComputeType(in.y);
  const std::vector<int64_t> heads = {in.skip.numel(), in.y.size(-1) / in.skip.numel()};
  const at::Tensor scaled =
      (in.x.to(compute).unflatten(-1, heads) * in.skip.to(compute).unsqueeze(-1)).flatten(-2);
  at::Tensor out = in.y.to(compute) + scaled;
  if (in.gate.defined()) out = out * at::silu(in.gate.to(compute));
  return out.to(in.y.scalar_type());
}

}  // namespace halflife::ops
