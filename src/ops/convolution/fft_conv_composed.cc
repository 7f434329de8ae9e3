#include "ops/convolution/fft_conv_composed.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/fft_irfft.h>
#include <ATen/ops/fft_rfft.h>

#include <bit>

#include "ops/torch/autograd.h"

namespace halflife::ops {
namespace {

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

struct ComposedFftConvOp {
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
ComposedFftConvOp::Inputs Backward(const BackwardOf<ComposedFftConvOp>& call) {
  using Inputs = ComposedFftConvOp::Inputs;
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

}  // namespace

at::Tensor ComposedFftConv(const at::Tensor& x, const at::Tensor& filter) {
  const auto forward = [&]() -> ForwardOf<ComposedFftConvOp> {
    const Transforms transforms(x);
    const at::Tensor spectrum = transforms.Spectrum(filter.unsqueeze(0));
    const at::Tensor product = transforms.Spectrum(x).mul_(spectrum);
    return {.outputs = {.y = transforms.Inverse(product)},
            .saved = {.x = x, .spectrum = spectrum},
            .backward = Backward};
  };
  return Apply<ComposedFftConvOp>(
             {.name = "FftConv", .inputs = {.x = x, .filter = filter}, .forward = forward})
      .y;
}

}  // namespace halflife::ops
