// Decay attention on a GPU: times between CUDA events beside what the same GPU copies and
// multiplies in the same run.
#pragma once

#include <nlohmann/json.hpp>

#include "problem.h"

namespace halflife::bench {

// bf16. Error (exit 4) without a GPU, or in a build without CUDA; exit 70 where the kernel is not
// the oracle's.
nlohmann::json CompareOnCuda(const Shape& shape, int rounds);

}  // namespace halflife::bench
