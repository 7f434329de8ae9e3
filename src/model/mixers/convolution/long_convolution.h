// What mixers share whose convolution is as long as the row: a filter that a small network makes
// from positions, applied by FFT in training and as a sum over all earlier inputs in decode. They
// take one document a row, of at most as many tokens as the filter has positions, and their state
// is the inputs so far.
//
//   const at::Tensor y = ConvolveRows({.x = x, .filter = filter, .past = before}, &inputs);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "model/mixer.h"
#include "ops/convolution/fft_conv.h"

namespace halflife::model {

// The features of positions 0 to filter_len - 1 that filters are made from (Poli et al., 2023), for
// one frequency: t / (filter_len - 1), cos(f w t) and -sin(f w t) with w = 2 pi / filter_len and f
// = 1e-4. Element i of [filter_len, 3].
constexpr int64_t kPositionFeatures = 3;
double PositionFeature(int64_t element, int64_t filter_len);

// A layer of a filter's network: x W^T + b, fp32 and without weight decay.
class FilterLayer {
 public:
  FilterLayer(const PartContext& context, const std::string& name, const MatrixShape& shape,
              bool bias);
  at::Tensor operator()(const at::Tensor& x) const;      // [T, in] -> [T, out]
  const at::Tensor& weight() const { return *weight_; }  // [out, in]
  const at::Tensor& bias() const { return *bias_; }      // [out], where there is one

 private:
  Parameter weight_, bias_;
};

// The traits of a mixer whose state is the inputs of its convolution.
MixerTraits LongConvolutionTraits(int64_t channels, int64_t filter_len);
// Errors (exit 2) for rows of several documents, and for rows beyond the filter.
void RequireOneDocument(const std::string& mixer, const SequenceSlice& slice);
void RequireWithinFilter(const std::string& mixer, int64_t num_tokens, int64_t filter_len);

struct LongConvolutionCall {
  at::Tensor x;                   // [B, T, C]; of a step [B, C]
  at::Tensor filter;              // [past + T, C], fp32 (fp64 beside fp64)
  ops::FilterWindow window = {};  // of the filter
  at::Tensor skip = {};           // [C], like the filter: adds skip x; undefined: nothing
  at::Tensor past = {};           // [B, past, C]: the inputs before the slice; undefined: none
};
// -> [B, T, C]. `after`, where it is not null, becomes the inputs up to the slice's end.
at::Tensor ConvolveRows(const LongConvolutionCall& call, at::Tensor* after);
// One token more -> [B, C]. `inputs` has num_past tokens in use, and gets x.
at::Tensor ConvolveStep(const LongConvolutionCall& call, int64_t num_past, at::Tensor& inputs);

// Operations of one channel and token: two transforms of a row, there and back, and the product.
double LongConvolutionFlops(int64_t seq_len);
// What the convolution of `channels` borrows on a GPU whose kernels take the row.
double LongConvolutionWorkspaceBytes(const GpuBatch& batch, int64_t channels);

}  // namespace halflife::model
