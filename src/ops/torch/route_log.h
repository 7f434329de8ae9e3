// Says in the debug log which kernels of a family run on a GPU, and why where they are not the fast
// ones: each answer once a process.
#pragma once

#include <string>

namespace halflife::ops {

void SayRoute(const char* family, const std::string& route);

}  // namespace halflife::ops
