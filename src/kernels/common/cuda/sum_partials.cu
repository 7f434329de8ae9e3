#include "kernels/common/sum_partials.h"

#include "kernels/common/cuda/device.h"

namespace halflife::kernels {
namespace {

constexpr int kColumns = 32, kSlices = 8;

// Block: kColumns columns of all destinations x kSlices threads for each. Slice s adds partials s,
// s + kSlices, ...
__global__ void __launch_bounds__(kColumns* kSlices)
    SumPartialsKernel(const float* partials, int64_t count, int64_t size, cuda::SumPlaces to) {
  HL_SHARED(sums, float[kSlices][kColumns]);
  const int lane = static_cast<int>(threadIdx.x) % kColumns;
  const int slice = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t of_all = int64_t{kColumns} * blockIdx.x + lane;
  // Finds the column's destination. A loop over constants, because an array with a variable index
  // would be placed in local memory.
  float* out = nullptr;
  bool added = false;
  int64_t column = of_all;
#pragma unroll
  for (int i = 0; i < cuda::kSumPlaces; ++i) {
    if (column >= 0 && column < to.places[i].size && to.places[i].out != nullptr) {
      const int64_t rows = to.places[i].rows, width = to.places[i].size / rows;
      out = to.places[i].out + (rows == 1 ? column : column % width * rows + column / width);
      added = to.places[i].added;
    }
    column -= to.places[i].size;
  }
  float sum = 0;
  for (int64_t p = slice; out != nullptr && p < count; p += kSlices)
    sum += partials[p * size + of_all];
  sums[slice][lane] = sum;
  __syncthreads();
  if (slice != 0 || out == nullptr) return;
  for (int s = 1; s < kSlices; ++s) sum += sums[s][lane];
  *out = added ? *out + sum : sum;
}

}  // namespace

namespace cuda {

void SumPartials(const float* partials, int64_t count, const SumPlaces& to, cudaStream_t stream) {
  int64_t size = 0;
  bool wanted = false;
  for (const SumPlace<float>& place : to.places) {
    size += place.size;
    wanted = wanted || (place.out != nullptr && place.size > 0);
  }
  if (!wanted) return;
  const auto blocks = static_cast<unsigned>((size + kColumns - 1) / kColumns);
  Launch({dim3(blocks), dim3(kColumns * kSlices), 0, "sum of partial gradients"}, stream,
         SumPartialsKernel, partials, count, size, to);
}

void SumPartials(const float* partials, int64_t count, int64_t size, float* out,
                 cudaStream_t stream, bool added) {
  SumPlaces to;
  to.places[0] = {out, size, added};
  SumPartials(partials, count, to, stream);
}

}  // namespace cuda
}  // namespace halflife::kernels
