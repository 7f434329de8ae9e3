// A decay per key channel that a recurrence has computed itself: it passes the log decay to a decay
// recurrence as the only product.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "model/mixers/linear/log_decay.h"

namespace halflife::model {

class GivenDecay : public LogDecay {
 public:
  // products[0] is the log decay [B, T, Hk, K].
  at::Tensor operator()(const at::Tensor&,
                        std::span<const ops::LinearPart> products) const override {
    return products[0].y;
  }
  bool per_channel() const override { return true; }
};

}  // namespace halflife::model
