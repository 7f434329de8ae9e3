// Matmul compiled for AVX2. Only called if the processor supports it.
#include <omp.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/common/cpu/math.h"

#include "kernels/common/cpu/avx2.h"

#include "kernels/linear/matmul_body.h"
