#include "ops/rows/real_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <limits>

#include "core/error.h"
#include "kernels/rows/real_norm_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

constexpr int64_t kRowsPerTask = 256;

struct RealNormOp {
  struct Inputs {
    at::Tensor x;
  };
  struct Outputs {
    at::Tensor out;
  };
  struct Saved {
    at::Tensor out, factor, slope;
  };
};

RealNormOp::Saved ForwardFused(const at::Tensor& x, double eps) {
  const int64_t dim = x.size(-1), num_rows = x.numel() / dim;
  const at::TensorOptions wide = x.options().dtype(at::kFloat);
  const at::Tensor out = at::empty(x.sizes(), wide), factor = at::empty({num_rows}, wide),
                   slope = at::empty({num_rows}, wide);
  WithStorage(x, [&]<typename T>() {
    const kernels::RealNormRows<T> rows = {.x = Elements<T>(x),
                                           .out = MutableElements<float>(out),
                                           .factor = MutableElements<float>(factor),
                                           .slope = MutableElements<float>(slope),
                                           .num_rows = num_rows,
                                           .dim = dim,
                                           .eps = static_cast<float>(eps)};
    RunOn(
        x,
        [&] {
          at::parallel_for(0, num_rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
            kernels::cpu::RealNormForward(rows, begin, end);
          });
        },
        [&](auto stream) { kernels::cuda::RealNormForward(rows, stream); });
  });
  return {.out = out, .factor = factor, .slope = slope};
}

// Returns dx. `like` is its dtype.
at::Tensor BackwardFused(const RealNormOp::Saved& forward, const at::Tensor& dout,
                         at::ScalarType like) {
  const at::Tensor dx = at::empty_like(dout, dout.options().dtype(like));
  const int64_t dim = dout.size(-1), num_rows = dout.numel() / dim;
  WithStorage(dx, [&]<typename T>() {
    const kernels::RealNormGradRows<T> rows = {.out = Elements<float>(forward.out),
                                               .factor = Elements<float>(forward.factor),
                                               .slope = Elements<float>(forward.slope),
                                               .dout = Elements<float>(dout),
                                               .dx = MutableElements<T>(dx),
                                               .num_rows = num_rows,
                                               .dim = dim};
    RunOn(
        dx,
        [&] {
          at::parallel_for(0, num_rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
            kernels::cpu::RealNormBackward(rows, begin, end);
          });
        },
        [&](auto stream) { kernels::cuda::RealNormBackward(rows, stream); });
  });
  return dx;
}

at::Tensor Fused(const at::Tensor& x, double eps) {
  const auto backward =
      [dtype = x.scalar_type()](const BackwardOf<RealNormOp>& call) -> RealNormOp::Inputs {
    return {.x = BackwardFused(call.saved, call.grads.out.contiguous(), dtype)};
  };
  const auto forward = [&]() -> ForwardOf<RealNormOp> {
    const RealNormOp::Saved results = ForwardFused(x.contiguous(), eps);
    return {.outputs = {.out = results.out}, .saved = results, .backward = backward};
  };
  return Apply<RealNormOp>({.name = "RealNorm", .inputs = {.x = x}, .forward = forward}).out;
}

// The same in LibTorch calls, differentiated by autograd: for fp64.
at::Tensor Composed(const at::Tensor& x_in, double eps) {
  const at::Tensor x = x_in.to(ComputeType(x_in));
  const at::Tensor centred = x - x.mean(-1, /*keepdim=*/true);
  const at::Tensor variance =
      centred.square().sum(-1, /*keepdim=*/true) / static_cast<double>(x.size(-1) - 1);
  // Constant rows avoid the square root, whose slope at 0 is infinite.
  const at::Tensor varies = variance != 0;
  const at::Tensor deviation = at::where(varies, variance, at::ones_like(variance)).sqrt() + eps;
  const double constant = eps > 0 ? eps : std::numeric_limits<double>::infinity();
  return centred / at::where(varies, deviation, at::full_like(deviation, constant));
}

}  // namespace

at::Tensor RealNorm(const at::Tensor& x, double eps) {
  CheckDTypes("RealNorm", {x});
  HL_CHECK(x.defined() && x.dim() >= 1 && x.size(-1) >= 2, "RealNorm got x ", Describe(x),
           ". Use x [..., n] with at least 2 channels.");
  return IsFused(x) ? Fused(x, eps) : Composed(x, eps);
}

}  // namespace halflife::ops
