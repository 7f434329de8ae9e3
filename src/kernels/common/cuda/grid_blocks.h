// The size of a launch's grid where it follows from data. C++17: CUDA sources include it.
//
//   Launch({GridBlocks((rows + 127) / 128, "row sum"), 128, 0, "row sum"}, stream, Sum, x, out);
#pragma once

#include <cstdint>

#include "core/error.h"

namespace halflife::kernels {

// `blocks` as a grid's x, whose 32 bits a count of rows or elements may exceed.
inline unsigned GridBlocks(int64_t blocks, const char* name) {
  constexpr int64_t kMax = 0x7fffffff;
  HL_CHECK_AS(ExitCode::kUsage, blocks <= kMax, name, ": ", blocks, " blocks; a launch takes ",
              kMax, ", so split the batch");
  return static_cast<unsigned>(blocks);
}

}  // namespace halflife::kernels
