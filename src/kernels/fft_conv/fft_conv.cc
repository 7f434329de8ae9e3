#include "kernels/fft_conv/fft_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/fft_irfft.h>
#include <ATen/ops/fft_rfft.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "kernels/torch/autograd.h"
#include "kernels/torch/dispatch.h"
#include "kernels/torch/tensor_checks.h"

namespace halflife::kernels {
namespace {

// Transforms of up to as many rows at once as are worked through together: on a CPU one, so that
// its channels and their spectra stay in the cache.
class Transforms {
 public:
  explicit Transforms(const at::Tensor& x)
      : seq_len_(x.size(1)),
        num_rows_(x.size(0)),
        block_rows_(x.is_cpu() ? std::min<int64_t>(1, x.size(0)) : x.size(0)),
        // The least power of two that a product of two polynomials of T terms fits in.
        length_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * seq_len_ - 1)))),
        padded_(at::zeros({std::max<int64_t>(1, block_rows_), x.size(2), length_},
                          x.options().dtype(ComputeType(x)))) {}

  // visit(first, count) of each block of rows.
  template <typename Visit>
  void ForEachBlock(const Visit& visit) const {
    for (int64_t first = 0; first < num_rows_; first += block_rows_)
      visit(first, std::min(block_rows_, num_rows_ - first));
  }
  at::Tensor Spectrum(const at::Tensor& rows) {  // [rows, T, D] -> [rows, D, F]
    const at::Tensor padded = padded_.narrow(0, 0, rows.size(0));
    padded.narrow(2, 0, seq_len_).copy_(rows.transpose(1, 2));
    return at::fft_rfft(padded);
  }
  void Invert(const at::Tensor& spectrum, const at::Tensor& rows) const {  // into [rows, T, D]
    rows.copy_(at::fft_irfft(spectrum, length_).narrow(2, 0, seq_len_).transpose(1, 2));
  }

 private:
  int64_t seq_len_, num_rows_, block_rows_, length_;
  at::Tensor padded_;  // [rows, D, length], zeros from T on
};

// With the transforms X, H and G of x, the filter and dy: dx is that of G conj(H), dfilter that of
// the sum of G conj(X) over the rows. X is made again, which is faster than keeping it.
Tensors Backward(const BackwardCall& call) {
  const at::Tensor &x = call.saved[0], &spectrum = call.saved[1], &dy = call.grads[0];
  Transforms transforms(x);
  const at::Tensor conjugate = at::conj_physical(spectrum), sum = at::zeros_like(spectrum);
  const at::Tensor dx = call.wanted[0] ? at::empty(x.sizes(), x.options()) : at::Tensor();
  transforms.ForEachBlock([&](int64_t first, int64_t count) {
    at::Tensor of_dy = transforms.Spectrum(dy.narrow(0, first, count));
    if (call.wanted[1]) {
      const at::Tensor product =
          transforms.Spectrum(x.narrow(0, first, count)).conj_physical_().mul_(of_dy);
      sum.add_(count == 1 ? product : product.sum(0, /*keepdim=*/true));
    }
    if (call.wanted[0]) transforms.Invert(of_dy.mul_(conjugate), dx.narrow(0, first, count));
  });
  Tensors grads = {dx, at::Tensor()};
  if (call.wanted[1]) {
    grads[1] = at::empty({x.size(1), x.size(2)}, x.options().dtype(ComputeType(x)));
    transforms.Invert(sum, grads[1].unsqueeze(0));
  }
  return grads;
}

}  // namespace

at::Tensor FftConv(const FftConvInputs& inputs) {
  const at::Tensor &x = inputs.x, &filter = inputs.filter;
  CheckDTypes("FftConv", {x, filter});
  HL_CHECK(x.defined() && x.dim() == 3 && x.size(1) >= 1 &&
               FitsBeside(x, filter, {x.size(1), x.size(2)}),
           "FftConv of x ", Describe(x), " with filter ", Describe(filter),
           "; x [B, T, D] and filter [T, D] on one device would work");
  const auto forward = [&]() -> Forwarded {
    Transforms transforms(x);
    const at::Tensor spectrum = transforms.Spectrum(filter.unsqueeze(0));
    const at::Tensor y = at::empty(x.sizes(), x.options());
    transforms.ForEachBlock([&](int64_t first, int64_t count) {
      at::Tensor product = transforms.Spectrum(x.narrow(0, first, count)).mul_(spectrum);
      transforms.Invert(product, y.narrow(0, first, count));
    });
    return {.outputs = {y}, .saved = {x, spectrum}, .backward = Backward};
  };
  return Apply({.name = "FftConv", .inputs = {x, filter}, .forward = forward})[0];
}

}  // namespace halflife::kernels
