// The size of a launch's grid if it depends on data. C++17, because CUDA sources include it.
//
//   Launch({GridBlocks((rows + 127) / 128, "row sum"), 128, 0, "row sum"}, stream, Sum, x, out);
#pragma once

#include <cstdint>

#include "core/error.h"

namespace halflife::kernels {

// Returns `blocks` as the x dimension of a grid, which has 32 bits. A count of rows or elements may
// exceed that.
inline unsigned GridBlocks(int64_t blocks, const char* name) {
  constexpr int64_t kMax = 0x7fffffff;
  HL_CHECK_AS(ExitCode::kUsage, blocks <= kMax, name, ": ", blocks, " blocks exceed the limit of ",
              kMax, " per launch. Split the batch.");
  return static_cast<unsigned>(blocks);
}

}  // namespace halflife::kernels
