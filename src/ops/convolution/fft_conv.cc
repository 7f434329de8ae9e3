#include "ops/convolution/fft_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/fft_irfft.h>
#include <ATen/ops/fft_rfft.h>
#include <ATen/ops/outer.h>

#include <bit>

#include "core/error.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

// The convolution by LibTorch's FFT of twice the length, so that nothing wraps around. The backward
// keeps x and the filter's spectrum.
class Transforms {
 public:
  explicit Transforms(const at::Tensor& x)
      : seq_len_(x.size(1)),
        // The smallest power of two that holds the product of two polynomials of T terms.
        length_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * seq_len_ - 1)))) {}

  at::Tensor Spectrum(const at::Tensor& rows) const {  // [rows, T, D] -> [rows, D, F]
    return at::fft_rfft(rows.transpose(1, 2), length_);
  }
  at::Tensor Inverse(const at::Tensor& spectrum) const {  // [rows, T, D]
    return at::fft_irfft(spectrum, length_).narrow(2, 0, seq_len_).transpose(1, 2).contiguous();
  }

 private:
  int64_t seq_len_, length_;
};

struct FftConvOp {
  struct Inputs {
    at::Tensor x, filter;
  };
  struct Outputs {
    at::Tensor y;
  };
  struct Saved {
    at::Tensor x;
    at::Tensor spectrum;  // of the filter
  };
};

// With X, H and G the transforms of x, the filter and dy: dx is the inverse transform of G conj(H),
// and dfilter that of G conj(X) summed over the rows. X is recomputed, which is faster than keeping
// it.
FftConvOp::Inputs Backward(const BackwardOf<FftConvOp>& call) {
  using Inputs = FftConvOp::Inputs;
  const auto& [x, spectrum] = call.saved;
  const Transforms transforms(x);
  const at::Tensor of_dy = transforms.Spectrum(call.grads.y);
  Inputs grads;
  if (call.Wants(&Inputs::x)) grads.x = transforms.Inverse(of_dy * at::conj_physical(spectrum));
  if (call.Wants(&Inputs::filter)) {
    const at::Tensor sum =
        transforms.Spectrum(x).conj_physical_().mul_(of_dy).sum(0, /*keepdim=*/true);
    grads.filter = transforms.Inverse(sum)[0];
  }
  return grads;
}

at::Tensor Convolve(const at::Tensor& x, const at::Tensor& filter) {
  const auto forward = [&]() -> ForwardOf<FftConvOp> {
    const Transforms transforms(x);
    const at::Tensor spectrum = transforms.Spectrum(filter.unsqueeze(0));
    const at::Tensor product = transforms.Spectrum(x).mul_(spectrum);
    return {.outputs = {.y = transforms.Inverse(product)},
            .saved = {.x = x, .spectrum = spectrum},
            .backward = Backward};
  };
  return Apply<FftConvOp>(
             {.name = "FftConv", .inputs = {.x = x, .filter = filter}, .forward = forward})
      .y;
}

}  // namespace

at::Tensor Windowed(const at::Tensor& filter, const FilterWindow& window) {
  if (window.first == 0 && window.step == 0) return filter;
  const at::Tensor tokens = at::arange(filter.size(0), filter.options()),
                   channels = at::arange(filter.size(1), filter.options());
  return filter * at::exp(at::outer(tokens, channels * window.step + window.first));
}

at::Tensor FftConv(const FftConvInputs& inputs) {
  const at::Tensor &x = inputs.x, &filter = inputs.filter, &skip = inputs.skip;
  CheckDTypes("FftConv", {x, filter});
  HL_CHECK(
      x.defined() && x.dim() == 3 && x.size(1) >= 1 && filter.defined() && filter.dim() == 2 &&
          FitsWith(x, filter, {x.size(1), x.size(2)}) && filter.scalar_type() == ComputeType(x) &&
          (!skip.defined() ||
           (FitsWith(x, skip, {filter.size(1)}) && skip.scalar_type() == filter.scalar_type())),
      "FftConv of x ", Describe(x), " with filter ", Describe(filter),
      skip.defined() ? Concat(" and skip ", Describe(skip)) : "",
      ". Use x [B, T, D], filter [T, D] and skip [D] on one device, the last two ",
      DTypeName(ComputeType(x)), ".");
  const at::Tensor wide = x.to(ComputeType(x));
  at::Tensor y = Convolve(wide, Windowed(filter, inputs.window));
  if (skip.defined()) y = y + wide * skip;
  return y.to(x.scalar_type());
}

}  // namespace halflife::ops
