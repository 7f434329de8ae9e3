// Writes to the debug log which kernels of a family run on a GPU and, if they are not the fastest
// ones, why. Each route is logged once per process.
#pragma once

#include <string>

namespace halflife::ops {

void LogRoute(const char* family, const std::string& route);

}  // namespace halflife::ops
