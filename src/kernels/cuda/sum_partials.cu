#include "kernels/cuda/sum_partials.h"

#include "kernels/cuda/device.h"

namespace halflife::kernels {
namespace {

constexpr int kColumns = 32, kSlices = 8;

// Block: kColumns columns x kSlices threads each; slice s adds partials s, s + kSlices, ...
__global__ void __launch_bounds__(kColumns* kSlices)
    SumPartialsKernel(const float* partials, int64_t count, int64_t size, float* out, bool added) {
  HL_SHARED(sums, float[kSlices][kColumns]);
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int slice = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t i = int64_t{kColumns} * blockIdx.x + column;
  float sum = 0;
  for (int64_t p = slice; i < size && p < count; p += kSlices) sum += partials[p * size + i];
  sums[slice][column] = sum;
  __syncthreads();
  if (slice != 0 || i >= size) return;
  for (int s = 1; s < kSlices; ++s) sum += sums[s][column];
  out[i] = added ? out[i] + sum : sum;
}

}  // namespace

namespace cuda {

void SumPartials(const float* partials, int64_t count, int64_t size, float* out,
                 cudaStream_t stream, bool added) {
  if (size == 0) return;
  const auto blocks = static_cast<unsigned>((size + kColumns - 1) / kColumns);
  Launch({dim3(blocks), dim3(kColumns * kSlices), 0, "sum of partial gradients"}, stream,
         SumPartialsKernel, partials, count, size, out, added);
}

}  // namespace cuda
}  // namespace halflife::kernels
