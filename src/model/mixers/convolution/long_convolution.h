// Convolutions that are as long as the row, for base_conv and hyena. A small network computes the
// filter from positions. Training applies it by FFT, decoding as a sum over all earlier inputs. The
// state is the list of all inputs so far. A row must be one document, with at most as many tokens
// as the filter has positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "model/mixer.h"
#include "ops/convolution/fft_conv.h"

namespace halflife::model {

// Element i of the position features [filter_len, 3] (Poli et al., 2023), with one frequency. Row t
// is {t / (filter_len - 1), cos(f w t), -sin(f w t)} with w = 2 pi / filter_len and f = 1e-4.
constexpr int64_t kPositionFeatures = 3;
double PositionFeature(int64_t element, int64_t filter_len);

// A layer of a filter network: x W^T + b, in fp32 and without weight decay.
class FilterLayer {
 public:
  FilterLayer(const PartContext& context, const std::string& name, const MatrixShape& shape,
              bool bias);
  at::Tensor operator()(const at::Tensor& x) const;  // [T, in] -> [T, out]

 private:
  Parameter weight_, bias_;
};

// Returns the traits of a mixer whose state is the inputs of its convolution.
MixerTraits LongConvolutionTraits(int64_t channels, int64_t filter_len);
// Throw kUsage (exit 2) for rows of several documents, and for rows longer than the filter.
void RequireOneDocument(const std::string& mixer, const SequenceSlice& slice);
void RequireWithinFilter(const std::string& mixer, int64_t num_tokens, int64_t filter_len);

struct LongConvolutionCall {
  at::Tensor x;                   // [B, T, C]; in a step [B, C]
  at::Tensor filter;              // [past + T, C], fp32 (fp64 for fp64 inputs)
  ops::FilterWindow window = {};  // multiplies the filter
  at::Tensor skip = {};           // [C], dtype of the filter: adds skip x; undefined: none
  at::Tensor past = {};           // [B, past, C]: the inputs before the slice; undefined: none
};
// -> [B, T, C]. If `after` is not null, it receives all inputs up to the end of the slice.
at::Tensor ConvolveRows(const LongConvolutionCall& call, at::Tensor* after);
// Decodes one token -> [B, C]. `inputs` holds num_past tokens, and x is appended to it.
at::Tensor ConvolveStep(const LongConvolutionCall& call, int64_t num_past, at::Tensor& inputs);

// Returns FLOPs per channel and token: those of the transforms of a row to the frequency domain and
// back, and of the product between them.
double LongConvolutionFlops(int64_t seq_len);
// Returns the workspace in bytes of the backward of a convolution of `channels` on a GPU.
double LongConvolutionWorkspaceBytes(const GpuBatch& batch, int64_t channels);

}  // namespace halflife::model
