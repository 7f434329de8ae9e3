// The weight of an RMS norm, plain or zero-centered. A zero-centered weight w multiplies by 1 + w
// (Qwen3-Next, Gemma). It starts at 0, and the optimizer and checkpoints hold w itself, so weight
// decay, if there is any, pulls the factor towards 1.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "model/part_context.h"

namespace halflife::model {

class NormWeight {
 public:
  NormWeight() = default;
  // Declares the weight [dim], named prefix + name: in fp32, without weight decay.
  NormWeight(const PartContext& context, const std::string& name, int64_t dim, bool zero_centered)
      : zero_centered_(zero_centered),
        weight_(zero_centered ? context.parameters->Declare({.name = context.prefix + name,
                                                             .shape = {dim},
                                                             .region = dist::Region::kFp32},
                                                            Init::Zeros())
                              : DeclareNorm(context, name, dim)) {}

  bool declared() const { return weight_.declared(); }
  // Returns the factor of the normed channels, [dim].
  at::Tensor Factor() const { return zero_centered_ ? *weight_ + 1 : *weight_; }

 private:
  bool zero_centered_ = false;
  Parameter weight_;
};

}  // namespace halflife::model
