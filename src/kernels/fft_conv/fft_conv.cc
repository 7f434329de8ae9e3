#include "kernels/fft_conv/fft_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/fft_irfft.h>
#include <ATen/ops/fft_rfft.h>

#include <bit>

#include "core/error.h"
#include "kernels/torch/dispatch.h"
#include "kernels/torch/tensor_checks.h"

namespace halflife::kernels {

at::Tensor FftConv(const FftConvInputs& inputs) {
  const at::Tensor &x = inputs.x, &filter = inputs.filter;
  CheckDTypes("FftConv", {x, filter});
  HL_CHECK(x.defined() && x.dim() == 3 && x.size(1) >= 1 &&
               FitsBeside(x, filter, {x.size(1), x.size(2)}),
           "FftConv of x ", Describe(x), " with filter ", Describe(filter),
           "; x [B, T, D] and filter [T, D] on one device would work");
  const int64_t seq_len = x.size(1);
  // The least power of two that a product of two polynomials of T terms fits in.
  const auto length = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * seq_len - 1)));
  const at::ScalarType compute = ComputeType(x);
  const auto spectrum = [&](const at::Tensor& values, int64_t dim) {
    return at::fft_rfft(values.to(compute), length, dim);
  };
  const at::Tensor product = spectrum(x, 1) * spectrum(filter, 0);
  return at::fft_irfft(product, length, 1).narrow(1, 0, seq_len).to(x.scalar_type());
}

}  // namespace halflife::kernels
