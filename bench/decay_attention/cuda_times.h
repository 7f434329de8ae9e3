// Decay attention on a GPU: times between CUDA events, together with the speed of copies and
// products of the same GPU in the same run.
#pragma once

#include <nlohmann/json.hpp>

#include "problem.h"

namespace halflife::bench {

// Runs in bf16. Throws Error: exit 4 without a GPU or in a build without CUDA, exit 70 if the
// kernel disagrees with the oracle.
nlohmann::json CompareOnCuda(const Shape& shape, int rounds);

}  // namespace halflife::bench
