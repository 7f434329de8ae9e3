#include <algorithm>

#include "kernels/adamw/adamw_args.h"
#include "kernels/common/cuda/device.h"

namespace halflife::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;  // 112 bytes in flight a thread hide the memory's latency
constexpr int64_t kMaxBlocks = 4096;

// Grid: x strides over a segment, y is the segment. No element is touched by two threads.
__global__ void __launch_bounds__(kThreads) UpdateSegment(AdamWArgs args) {
  const AdamWSegment segment = args.segments[blockIdx.y];
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = segment.begin + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < segment.end; i += stride) {
    float* const main = args.main + (i + segment.main_shift);
    const int64_t moment = i + segment.moments_shift;
    float m = args.m[moment], v = args.v[moment];
    const float w = AdamWElement(args.factors, segment.weight_decay,
                                 args.grads[i + segment.grads_shift], *main, m, v);
    *main = w;
    args.m[moment] = m;
    args.v[moment] = v;
    if (args.copy != nullptr && segment.has_copy != 0)
      reinterpret_cast<bf16*>(args.copy)[i] = __float2bfloat16_rn(w);
  }
}

}  // namespace

namespace cuda {

void AdamW(const AdamWArgs& args, cudaStream_t stream) {
  constexpr int kMaxSegments = 65535;  // of a grid's y
  constexpr int64_t kElements = kThreads * kPerThread;
  if (args.max_segment == 0) return;
  const auto blocks = static_cast<unsigned>(
      std::clamp<int64_t>((args.max_segment + kElements - 1) / kElements, 1, kMaxBlocks));
  for (int first = 0; first < args.num_segments; first += kMaxSegments) {
    AdamWArgs part = args;
    part.segments = args.segments + first;
    const auto count = static_cast<unsigned>(std::min(kMaxSegments, args.num_segments - first));
    Launch({dim3(blocks, count), dim3(kThreads), 0, "AdamW"}, stream, UpdateSegment, part);
  }
}

}  // namespace cuda
}  // namespace halflife::kernels
