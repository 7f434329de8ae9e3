#include "ops/rows/rms_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/error.h"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/rms_norm_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

// Returns the layout in which the kernels read a gate [..., H, V] and write its gradient:
// contiguous, absent, or with adjacent heads per token and a constant token stride. Returns nullopt
// if the gate must be copied first.
std::optional<kernels::NormGatePlace> FindPlace(const at::Tensor& gate) {
  if (!gate.defined() || gate.is_contiguous()) return kernels::NormGatePlace{};
  const auto stride = gate.dim() < 3 ? std::nullopt : RowStride(gate, /*inner=*/2);
  // a stride of 0 marks a contiguous gate
  if (!stride.has_value() || *stride == 0) return std::nullopt;
  return kernels::NormGatePlace{.gate_rows = gate.size(-2), .gate_stride = *stride};
}
// Returns the buffer of a gate's gradient: `place`, or dense memory if the kernels cannot write it.
at::Tensor EmptyGateGradient(const ColumnSlice& place, const at::Tensor& gate) {
  if (!gate.defined()) return gate;
  at::Tensor dgate = place.EmptyLike(gate);
  return FindPlace(dgate).has_value() ? dgate : ColumnSlice().EmptyLike(gate);
}

struct RmsNormed {
  at::Tensor sum;  // undefined without a residual
  at::Tensor out, inverse_rms;
};

struct NormInputs {
  // Contiguous, except that a gate may be in columns. `residual` and `gate` may be undefined.
  at::Tensor x, residual, gate;
  kernels::NormGate gate_kind = kernels::NormGate::kSilu;
  at::Tensor weight;  // fp32
};

RmsNormed ForwardFused(const NormInputs& in, double eps) {
  const int64_t dim = in.x.size(-1), num_rows = in.x.numel() / dim;
  RmsNormed result = {.sum = in.residual.defined() ? at::empty_like(in.x) : at::Tensor(),
                      .out = at::empty_like(in.x),
                      .inverse_rms = at::empty({num_rows}, in.x.options().dtype(at::kFloat))};
  WithStorage(in.x, [&]<typename T>() {
    const kernels::NormRows<T> rows = {.x = Elements<T>(in.x),
                                       .residual = Elements<T>(in.residual),
                                       .gate = Elements<T>(in.gate),
                                       .gate_place = FindPlace(in.gate).value(),
                                       .gate_kind = in.gate_kind,
                                       .weight = Elements<float>(in.weight),
                                       .sum = MutableElements<T>(result.sum),
                                       .out = MutableElements<T>(result.out),
                                       .inverse_rms = MutableElements<float>(result.inverse_rms),
                                       .num_rows = num_rows,
                                       .dim = dim,
                                       .eps = static_cast<float>(eps)};
    RunRows(
        in.x, {.count = num_rows, .per_task = kernels::cpu::kRowsPerPartial},
        [&](int64_t begin, int64_t end) { kernels::cpu::NormForward(rows, begin, end); },
        [&](auto stream) { kernels::cuda::NormForward(rows, stream); });
  });
  return result;
}

struct NormGradInputs {
  at::Tensor x, gate, weight, inverse_rms;
  kernels::NormGate gate_kind = kernels::NormGate::kSilu;
  bool wants_dweight = false;
  at::Tensor dout, dsum;   // dsum may be undefined
  ColumnSlice dgate = {};  // buffer of the gate's gradient
};
struct NormGrads {
  at::Tensor dx, dgate, dweight;  // undefined: not computed, or in a sink
};

// Overwrites dweight [dim] or, if `added`, adds to it.
template <typename T>
void BackwardOnCpu(const kernels::NormGradRows<T>& rows, float* dweight, bool added) {
  const int64_t dim = rows.dim;
  const int64_t num_blocks =
      (rows.num_rows + kernels::cpu::kRowsPerPartial - 1) / kernels::cpu::kRowsPerPartial;
  std::vector<float> partial(num_blocks * dim);
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(dim);
    for (int64_t block = begin; block < end; ++block)
      kernels::cpu::NormBackward(
          rows, block * kernels::cpu::kRowsPerPartial,
          std::min(rows.num_rows, (block + 1) * kernels::cpu::kRowsPerPartial),
          partial.data() + block * dim, scratch.data());
  });
  kernels::cpu::SumPartials(partial.data(), num_blocks, dim, dweight, added);
}

NormGrads BackwardFused(const NormGradInputs& in) {
  const int64_t dim = in.x.size(-1), num_rows = in.x.numel() / dim;
  NormGrads grads = {.dx = at::empty_like(in.x), .dgate = EmptyGateGradient(in.dgate, in.gate)};
  GradientBuffer buffer(in.weight, in.wants_dweight);
  auto* const dweight = MutableElements<float>(buffer.sum());
  WithStorage(in.x, [&]<typename T>() {
    const kernels::NormGradRows<T> rows = {.x = Elements<T>(in.x),
                                           .gate = Elements<T>(in.gate),
                                           .gate_place = FindPlace(in.gate).value(),
                                           .gate_kind = in.gate_kind,
                                           .weight = Elements<float>(in.weight),
                                           .inverse_rms = Elements<float>(in.inverse_rms),
                                           .dout = Elements<T>(in.dout),
                                           .dsum = Elements<T>(in.dsum),
                                           .dx = MutableElements<T>(grads.dx),
                                           .dgate = MutableElements<T>(grads.dgate),
                                           .dgate_place = FindPlace(grads.dgate).value(),
                                           .num_rows = num_rows,
                                           .dim = dim};
    RunOn(
        in.x, [&] { BackwardOnCpu(rows, dweight, buffer.added()); },
        [&](auto stream) {
          const at::Tensor workspace =
              at::empty({kernels::cuda::NormWorkspaceFloats(num_rows, dim)}, in.weight.options());
          kernels::cuda::NormBackward(rows, dweight, buffer.added(),
                                      MutableElements<float>(workspace), stream);
        });
  });
  grads.dweight = buffer.Finish();
  return grads;
}

struct RmsNormOp {
  struct Inputs {
    at::Tensor x, gate, weight;
  };
  struct Outputs {
    at::Tensor out;
  };
  struct Saved {
    at::Tensor x, gate, weight, inverse_rms;
  };
};

at::Tensor FusedRmsNorm(const at::Tensor& x_in, const at::Tensor& gate_in,
                        const at::Tensor& weight_in, double eps,
                        kernels::NormGate gate_kind = kernels::NormGate::kSilu,
                        const ColumnSlice& dgate = {}) {
  const auto forward = [&]() -> ForwardOf<RmsNormOp> {
    const at::Tensor x = x_in.contiguous(), weight = weight_in.contiguous();
    const at::Tensor gate = FindPlace(gate_in).has_value() ? gate_in : gate_in.contiguous();
    const RmsNormed normed = ForwardFused(
        {.x = x, .residual = {}, .gate = gate, .gate_kind = gate_kind, .weight = weight}, eps);
    return {.outputs = {.out = normed.out},
            .saved = {.x = x, .gate = gate, .weight = weight, .inverse_rms = normed.inverse_rms},
            .backward = [gate_kind, dgate](const BackwardOf<RmsNormOp>& call) -> RmsNormOp::Inputs {
              const NormGrads result =
                  BackwardFused({.x = call.saved.x,
                                 .gate = call.saved.gate,
                                 .weight = call.saved.weight,
                                 .inverse_rms = call.saved.inverse_rms,
                                 .gate_kind = gate_kind,
                                 .wants_dweight = call.Wants(&RmsNormOp::Inputs::weight),
                                 .dout = call.grads.out.contiguous(),
                                 .dsum = {},
                                 .dgate = dgate});
              return {.x = result.dx, .gate = result.dgate, .weight = result.dweight};
            }};
  };
  return Apply<RmsNormOp>({.name = "RmsNorm",
                           .inputs = {.x = x_in, .gate = gate_in, .weight = weight_in},
                           .forward = forward})
      .out;
}

struct AddRmsNormOp {
  struct Inputs {
    at::Tensor x, branch, weight;
  };
  struct Outputs {
    at::Tensor sum, normed;
  };
  struct Saved {
    at::Tensor sum, weight, inverse_rms;
  };
};

// The gradient of x and of branch is that of the sum: its own gradient plus the gradient through
// the norm.
AddRmsNormOp::Inputs AddRmsNormBackward(const BackwardOf<AddRmsNormOp>& call) {
  const at::Tensor &dsum = call.grads.sum, &dout = call.grads.normed;
  if (!dout.defined()) return {.x = dsum, .branch = dsum, .weight = {}};
  const NormGrads result =
      BackwardFused({.x = call.saved.sum,
                     .gate = {},
                     .weight = call.saved.weight,
                     .inverse_rms = call.saved.inverse_rms,
                     .wants_dweight = call.Wants(&AddRmsNormOp::Inputs::weight),
                     .dout = dout.contiguous(),
                     .dsum = dsum.defined() ? dsum.contiguous() : dsum});
  return {.x = result.dx, .branch = result.dx, .weight = result.dweight};
}

ResidualNorm FusedAddRmsNorm(const at::Tensor& x, const at::Tensor& branch,
                             const at::Tensor& weight_in, double eps) {
  const auto forward = [&]() -> ForwardOf<AddRmsNormOp> {
    const at::Tensor weight = weight_in.contiguous();
    const RmsNormed normed = ForwardFused(
        {.x = x.contiguous(), .residual = branch.contiguous(), .gate = {}, .weight = weight}, eps);
    return {.outputs = {.sum = normed.sum, .normed = normed.out},
            .saved = {.sum = normed.sum, .weight = weight, .inverse_rms = normed.inverse_rms},
            .backward = AddRmsNormBackward};
  };
  const auto [sum, out] =
      Apply<AddRmsNormOp>({.name = "AddRmsNorm",
                           .inputs = {.x = x, .branch = branch, .weight = weight_in},
                           .undefined_grads = true,
                           .forward = forward});
  return {.sum = sum, .normed = out};
}

// The same in LibTorch calls, differentiated by autograd: for fp64.
at::Tensor Composed(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                    double eps, kernels::NormGate gate_kind = kernels::NormGate::kSilu) {
  const at::ScalarType compute = ComputeType(x);
  const at::Tensor wide = x.to(compute);
  at::Tensor y = wide * at::rsqrt(wide.square().mean(-1, true) + eps) * weight.to(compute);
  if (gate.defined()) {
    const at::Tensor wide_gate = gate.to(compute);
    y = y * (gate_kind == kernels::NormGate::kSilu ? at::silu(wide_gate) : at::sigmoid(wide_gate));
  }
  return y.to(x.scalar_type());
}

bool IsNormed(const at::Tensor& x, const at::Tensor& weight) {
  return x.defined() && x.dim() >= 1 && x.size(-1) >= 1 && FitsWith(x, weight, {x.size(-1)});
}
bool RunsFused(const at::Tensor& x, const at::Tensor& weight) {
  return IsFused(x) && weight.scalar_type() == at::kFloat;
}

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  CheckDTypes("RmsNorm", {x, weight});
  HL_CHECK(IsNormed(x, weight), "RmsNorm got x ", Describe(x), " with weight ", Describe(weight),
           ". Use x [..., D] and weight [D] on one device.");
  if (RunsFused(x, weight)) return FusedRmsNorm(x, at::Tensor(), weight, eps);
  return Composed(x, at::Tensor(), weight, eps);
}

at::Tensor GatedRmsNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                        double eps, kernels::NormGate gate_kind, const ColumnSlice& dgate) {
  CheckDTypes("GatedRmsNorm", {x, gate, weight});
  HL_CHECK(IsNormed(x, weight) && IsLike(x, gate), "GatedRmsNorm got x ", Describe(x),
           " with gate ", Describe(gate), " and weight ", Describe(weight),
           ". Use x and gate [..., V] of one dtype and weight [V], on one device.");
  if (RunsFused(x, weight)) return FusedRmsNorm(x, gate, weight, eps, gate_kind, dgate);
  return Composed(x, gate, weight, eps, gate_kind);
}

ResidualNorm AddRmsNorm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                        double eps) {
  CheckDTypes("AddRmsNorm", {x, branch, weight});
  HL_CHECK(IsNormed(x, weight) && IsLike(x, branch), "AddRmsNorm got x ", Describe(x),
           " with branch ", Describe(branch), " and weight ", Describe(weight),
           ". Use x and branch [..., D] of one dtype and weight [D], on one device.");
  if (RunsFused(x, weight)) return FusedAddRmsNorm(x, branch, weight, eps);
  const at::Tensor sum = x + branch;
  return {.sum = sum, .normed = Composed(sum, at::Tensor(), weight, eps)};
}

namespace {

constexpr int64_t kUnitRowsPerTask = 256;

struct UnitNormOp {
  using Inputs = UnitNormPair;
  using Outputs = UnitNormPair;
  struct Saved {
    at::Tensor q, k, q_factor, k_factor;  // q and k: the outputs
  };
};

UnitNormOp::Saved UnitNormForwardFused(const UnitNormPair& x, double eps) {
  const int64_t dim = x.q.size(-1), num_rows = x.q.numel() / dim;
  const auto factors = [&] { return at::empty({num_rows}, x.q.options().dtype(at::kFloat)); };
  const UnitNormOp::Saved result = {.q = at::empty(x.q.sizes(), x.q.options()),
                                    .k = at::empty(x.k.sizes(), x.k.options()),
                                    .q_factor = factors(),
                                    .k_factor = factors()};
  WithStorage(x.q, [&]<typename T>() {
    const kernels::UnitNormArgs<T> args = {
        .parts = {{Elements<T>(x.q), MutableElements<T>(result.q),
                   MutableElements<float>(result.q_factor)},
                  {Elements<T>(x.k), MutableElements<T>(result.k),
                   MutableElements<float>(result.k_factor)}},
        .num_parts = 2,
        .num_rows = num_rows,
        .dim = dim,
        .eps = static_cast<float>(eps)};
    RunRows(
        x.q, {.count = num_rows, .per_task = kUnitRowsPerTask},
        [&](int64_t begin, int64_t end) { kernels::cpu::UnitNormForward(args, begin, end); },
        [&](auto stream) { kernels::cuda::UnitNormForward(args, stream); });
  });
  return result;
}

UnitNormPair UnitNormBackwardFused(const BackwardOf<UnitNormOp>& call) {
  const UnitNormOp::Saved& saved = call.saved;
  const int64_t dim = saved.q.size(-1), num_rows = saved.q.numel() / dim;
  const UnitNormPair dout = {.q = call.grads.q.contiguous(), .k = call.grads.k.contiguous()};
  const UnitNormPair dx = {.q = at::empty(saved.q.sizes(), saved.q.options()),
                           .k = at::empty(saved.k.sizes(), saved.k.options())};
  WithStorage(saved.q, [&]<typename T>() {
    const kernels::UnitNormGradArgs<T> args = {
        .parts = {{Elements<T>(saved.q), Elements<float>(saved.q_factor), Elements<T>(dout.q),
                   MutableElements<T>(dx.q)},
                  {Elements<T>(saved.k), Elements<float>(saved.k_factor), Elements<T>(dout.k),
                   MutableElements<T>(dx.k)}},
        .num_parts = 2,
        .num_rows = num_rows,
        .dim = dim};
    RunRows(
        saved.q, {.count = num_rows, .per_task = kUnitRowsPerTask},
        [&](int64_t begin, int64_t end) { kernels::cpu::UnitNormBackward(args, begin, end); },
        [&](auto stream) { kernels::cuda::UnitNormBackward(args, stream); });
  });
  return dx;
}

UnitNormPair UnitNormFused(const UnitNormPair& x, double eps) {
  const auto forward = [&]() -> ForwardOf<UnitNormOp> {
    const UnitNormOp::Saved result =
        UnitNormForwardFused({.q = x.q.contiguous(), .k = x.k.contiguous()}, eps);
    return {.outputs = {.q = result.q, .k = result.k},
            .saved = result,
            .backward = UnitNormBackwardFused};
  };
  return Apply<UnitNormOp>({.name = "UnitNorm", .inputs = x, .forward = forward});
}

// The same in LibTorch calls, differentiated by autograd: for fp64.
at::Tensor UnitNormComposed(const at::Tensor& x, double eps) {
  const at::Tensor wide = x.to(ComputeType(x));
  return (wide * at::rsqrt(wide.square().sum(-1, /*keepdim=*/true) + eps)).to(x.scalar_type());
}

}  // namespace

UnitNormPair UnitNorm(const UnitNormPair& x, double eps) {
  CheckDTypes("UnitNorm", {x.q, x.k});
  HL_CHECK(x.q.defined() && x.q.dim() >= 1 && x.q.size(-1) >= 1 && IsLike(x.q, x.k),
           "UnitNorm got q ", Describe(x.q), " and k ", Describe(x.k),
           ". Use q and k [..., D] of one shape and dtype, on one device.");
  if (IsFused(x.q)) return UnitNormFused(x, eps);
  return {.q = UnitNormComposed(x.q, eps), .k = UnitNormComposed(x.k, eps)};
}

}  // namespace halflife::ops
