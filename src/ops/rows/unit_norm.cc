#include "ops/rows/unit_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rsqrt.h>

#include "core/error.h"
#include "kernels/rows/unit_norm_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
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
    RunOn(
        x.q,
        [&] {
          at::parallel_for(0, num_rows, kUnitRowsPerTask, [&](int64_t begin, int64_t end) {
            kernels::cpu::UnitNormForward(args, begin, end);
          });
        },
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
    RunOn(
        saved.q,
        [&] {
          at::parallel_for(0, num_rows, kUnitRowsPerTask, [&](int64_t begin, int64_t end) {
            kernels::cpu::UnitNormBackward(args, begin, end);
          });
        },
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
