// A short depthwise causal convolution inside a mixer: its parameters, and its tail in the mixer's
// state.
//
// Shapes: B batch, T seq_len, C channels, W taps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "model/mixer.h"
#include "ops/convolution/short_conv.h"
#include "ops/torch/column_slices.h"

namespace halflife::model {

struct ConvolutionShape {
  int64_t channels = 0, taps = 0;
  bool bias = false, silu = false;
  // Initial values of weight and bias; absent: uniform in +-1/sqrt(W), as in torch.nn.Conv1d.
  std::optional<Init> init = {};
};

struct ConvolutionCall {
  at::Tensor x;                      // [B, T, C]
  const SequenceSlice& slice;        // borrowed
  at::Tensor tail;                   // [B, W-1, C], the inputs before the slice; undefined: none
  ops::ColumnSlice x_gradient = {};  // where the gradient of x is written
};

class ShortConvolution {
 public:
  ShortConvolution() = default;
  // Declares name.weight [C, 1, W] and name.bias [C] fp32, both without weight decay.
  ShortConvolution(const PartContext& context, const std::string& name,
                   const ConvolutionShape& shape);

  // -> [B, T, C]. If `after` is not null, it receives the tail after the slice, as a new tensor in
  // fp32 (fp64 for fp64 inputs).
  at::Tensor operator()(const ConvolutionCall& call, at::Tensor* after) const;
  // Returns the inputs of the convolution of ops/convolution/short_conv.h, for calls that join
  // several. It sets `after` as above.
  ops::ShortConvInputs Inputs(const ConvolutionCall& call, at::Tensor* after) const;
  at::Tensor Step(const at::Tensor& x, at::Tensor& tail) const;  // [B, C] -> [B, C]

  StateTensor tail(const std::string& name) const;
  double flops_per_token() const;

 private:
  ConvolutionShape shape_;
  Parameter weight_, bias_;
};

}  // namespace halflife::model
