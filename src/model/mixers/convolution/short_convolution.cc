#include "model/mixers/convolution/short_convolution.h"

namespace halflife::model {

ShortConvolution::ShortConvolution(const PartContext& context, const std::string& name,
                                   const ConvolutionShape& shape)
    : shape_(shape) {
  const Init init = shape.init.value_or(Init::UniformOfFanIn(shape.taps));
  weight_ = context.parameters->Declare(
      {.name = context.prefix + name + ".weight", .shape = {shape.channels, 1, shape.taps}}, init);
  if (shape.bias) bias_ = DeclareFp32(context, name + ".bias", {shape.channels}, init);
}

at::Tensor ShortConvolution::operator()(const ConvolutionCall& call, at::Tensor* after) const {
  return ops::ShortConv(Inputs(call, after));
}

ops::ShortConvInputs ShortConvolution::Inputs(const ConvolutionCall& call,
                                              at::Tensor* after) const {
  const ops::ShortConvInputs inputs = {.x = call.x,
                                       .weight = *weight_,
                                       .bias = shape_.bias ? *bias_ : at::Tensor(),
                                       .tail = call.tail,
                                       .documents = call.slice.documents,
                                       .starts = call.slice.starts,
                                       .silu = shape_.silu,
                                       .segment = call.slice.segment,
                                       .x_gradient = call.x_gradient};
  if (after != nullptr) *after = KeptTail(ops::ShortConvTail(inputs));
  return inputs;
}

at::Tensor ShortConvolution::Step(const at::Tensor& x, at::Tensor& tail) const {
  return ops::ShortConvStep({.x = x,
                             .weight = *weight_,
                             .bias = shape_.bias ? *bias_ : at::Tensor(),
                             .silu = shape_.silu},
                            tail);
}

StateTensor ShortConvolution::tail(const std::string& name) const {
  return {
      .name = name, .shape = {shape_.taps - 1, shape_.channels}, .exchange = StateExchange::kTail};
}

double ShortConvolution::flops_per_token() const {
  return 2 * static_cast<double>(shape_.taps * shape_.channels);
}

}  // namespace halflife::model
