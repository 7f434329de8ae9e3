// The short depthwise convolution as a part of a mixer: its parameters, and the tail that it leaves
// in the mixer's state.
//
//   const ShortConvolution conv(context, "conv", {.channels = dim, .taps = 3, .bias = true});
//   const at::Tensor y = conv({.x = x, .slice = slice, .tail = before}, &after);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "model/mixer.h"
#include "ops/torch/column_places.h"

namespace halflife::model {

struct ConvolutionShape {
  int64_t channels = 0, taps = 0;
  bool bias = false, silu = false;
  // How weight and bias start; absent: uniform in +-1/sqrt(W), as torch.nn.Conv1d's do.
  std::optional<Init> init = {};
};

struct ConvolutionCall {
  at::Tensor x;                      // [B, T, C]
  const SequenceSlice& slice;        // borrowed
  at::Tensor tail;                   // [B, W-1, C], the inputs before the slice; undefined: none
  ops::ColumnPlace x_gradient = {};  // where that of x goes, as ShortConvInputs has it
};

class ShortConvolution {
 public:
  ShortConvolution() = default;
  // Declares name.weight [C, 1, W] and name.bias [C]. Neither decays; the bias is fp32.
  ShortConvolution(const PartContext& context, const std::string& name,
                   const ConvolutionShape& shape);

  // -> [B, T, C]. `after`, where it is not null, becomes the tail that continues the slice: a
  // tensor of its own, fp32 (fp64 beside fp64).
  at::Tensor operator()(const ConvolutionCall& call, at::Tensor* after) const;
  at::Tensor Step(const at::Tensor& x, at::Tensor& tail) const;  // [B, C] -> [B, C]

  StateTensor tail(const std::string& name) const;
  double flops_per_token() const;

 private:
  ConvolutionShape shape_;
  Parameter weight_, bias_;
};

}  // namespace halflife::model
