// Gradients as they travel between ranks, where that is not as they are kept.
#pragma once

#include <cstdint>

#include "core/tensor_ref.h"

namespace halflife::dist {

class GradientWire {
 public:
  virtual ~GradientWire() = default;
  // Elements [begin, begin + count) of the gradients as they travel, which stay in place. Work is
  // queued where the step's own is.
  virtual TensorRef Load(int64_t begin, int64_t count) = 0;
  // What has come of them, to the gradients.
  virtual void Store(int64_t begin, int64_t count) = 0;
};

}  // namespace halflife::dist
