// Converts gradients to the form in which they travel between ranks, if that differs from how they
// are stored.
#pragma once

#include <cstdint>

#include "core/tensor_ref.h"

namespace halflife::dist {

class GradientWire {
 public:
  virtual ~GradientWire() = default;
  // Returns elements [begin, begin + count) of the gradients in the form in which they travel. The
  // returned memory does not move. Work is queued on the stream of the step.
  virtual TensorRef Load(int64_t begin, int64_t count) = 0;
  // Converts the received elements back into the gradients.
  virtual void Store(int64_t begin, int64_t count) = 0;
};

}  // namespace halflife::dist
