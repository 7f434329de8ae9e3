#include "model/mixers/convolution/long_convolution.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <bit>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "ops/linear/linear.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {

double PositionFeature(int64_t element, int64_t filter_len) {
  const auto position = static_cast<double>(element / kPositionFeatures),
             length = static_cast<double>(filter_len);
  const double angle = 1e-4 * 2 * std::numbers::pi * position / length;
  switch (element % kPositionFeatures) {
    case 0:
      return position / (length - 1);
    case 1:
      return std::cos(angle);
    default:
      return -std::sin(angle);
  }
}

FilterLayer::FilterLayer(const PartContext& context, const std::string& name,
                         const MatrixShape& shape, bool bias) {
  weight_ =
      DeclareFp32(context, name + ".weight", {shape.out, shape.in}, context.MatrixInit(shape.in));
  if (bias) bias_ = DeclareFp32(context, name + ".bias", {shape.out}, Init::Zeros());
}

at::Tensor FilterLayer::operator()(const at::Tensor& x) const {
  return AddBias(ops::Linear(x, *weight_), bias_);
}

MixerTraits LongConvolutionTraits(int64_t channels, int64_t filter_len) {
  return {.causal_in_bits = false,
          .packs_documents = false,
          .splits_rows = false,
          .max_tokens = filter_len,
          .state = {{.name = "inputs",
                     .shape = {StateTensor::kGrows, channels},
                     .compute_dtype = true,
                     .exchange = StateExchange::kGather}}};
}

void RequireOneDocument(const std::string& mixer, const SequenceSlice& slice) {
  HL_CHECK_AS(ExitCode::kUsage, !slice.has_boundaries(), "mixer ", mixer,
              " mixes whole rows, and these rows contain several documents. Use rows of one "
              "document, or a mixer that resets its state at document starts.");
}

void RequireWithinFilter(const std::string& mixer, int64_t num_tokens, int64_t filter_len) {
  HL_CHECK_AS(ExitCode::kUsage, num_tokens <= filter_len, "mixer ", mixer, " has a filter of ",
              filter_len, " positions, and the row has ", num_tokens,
              " tokens. Use shorter texts.");
}

at::Tensor ConvolveRows(const LongConvolutionCall& call, at::Tensor* after) {
  const int64_t num_past = call.past.defined() ? call.past.size(1) : 0, seq_len = call.x.size(1);
  const at::Tensor inputs = num_past > 0 ? at::cat({call.past, call.x}, 1) : call.x;
  if (after != nullptr) *after = inputs;
  return ops::FftConv(
             {.x = inputs, .filter = call.filter, .window = call.window, .skip = call.skip})
      .narrow(1, num_past, seq_len);
}

at::Tensor ConvolveStep(const LongConvolutionCall& call, int64_t num_past, at::Tensor& inputs) {
  AppendToken(call.x.unsqueeze(1), num_past, inputs);
  const at::Tensor seen = inputs.narrow(1, 0, num_past + 1).to(ops::ComputeType(call.x));
  const at::Tensor filter = ops::Windowed(call.filter, call.window);
  at::Tensor sum = (seen * filter.flip(0)).sum(1);
  if (call.skip.defined()) sum = sum + seen.select(1, num_past) * call.skip;
  return sum.to(call.x.scalar_type());
}

double LongConvolutionFlops(int64_t seq_len) {
  // 5 M log2(M) operations per transform, 6 for the complex product, 6 for the twiddle factors.
  return 10 * std::log2(static_cast<double>(seq_len)) + 12;
}

double LongConvolutionWorkspaceBytes(const GpuBatch& batch, int64_t channels) {
  // Backward: the spectra of dy, x and their product, and one array of points.
  const auto points = static_cast<double>(std::bit_ceil(static_cast<uint64_t>(2 * batch.seq_len)));
  const double bytes_per_point = 3 * 0.5 * sizeof(float[2]) + sizeof(float);
  return static_cast<double>(batch.batch * channels) * points * bytes_per_point;
}

}  // namespace halflife::model
