// Collects all problems of a kernel call's shape, to report them in one message.
#pragma once

#include <string>

#include "core/error.h"

namespace halflife::kernels {

class ShapeProblems {
 public:
  explicit ShapeProblems(const char* kernel) : kernel_(kernel) {}
  template <typename... Pieces>
  void Unless(bool holds, const Pieces&... pieces) {
    if (!holds) text_ += Concat("\n  ", pieces...);
  }
  void Throw() const {
    if (!text_.empty()) HL_FAIL(ExitCode::kUsage, kernel_, " cannot run this:", text_);
  }

 private:
  const char* kernel_;
  std::string text_;
};

}  // namespace halflife::kernels
