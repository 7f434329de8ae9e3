#include <algorithm>

#include "kernels/adamw/adamw_args.h"
#include "kernels/common/cuda/device.h"

namespace halflife::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 4;   // elements of a 16-byte access
constexpr int kPacks = 2;  // of a thread: 128 bytes of loads in flight hide the memory's latency
constexpr int64_t kMaxBlocks = 4096;

// The arrays of one segment, indexed by the element.
struct Arrays {
  HL_DEVICE Arrays(const AdamWArgs& args, const AdamWSegment& segment)
      : main(args.main + segment.main_shift),
        m(args.m + segment.moments_shift),
        v(args.v + segment.moments_shift),
        grads(args.grads + segment.grads_shift),
        copy(segment.has_copy != 0 ? args.copy : nullptr) {}

  // Returns the first element, between 0 and 3, at which every array allows accesses of kPack
  // elements, or -1 if there is none. They are 16 bytes for fp32 and 8 bytes for bf16.
  HL_DEVICE int Phase() const {
    const auto phase = [](const void* array, uintptr_t element_bytes) {
      return static_cast<int>((kPack - reinterpret_cast<uintptr_t>(array) / element_bytes) % kPack);
    };
    const int first = phase(main, 4);
    const bool same = phase(m, 4) == first && phase(v, 4) == first && phase(grads, 4) == first &&
                      (copy == nullptr || phase(copy, 2) == first);
    return same ? first : -1;
  }

  float *main, *m, *v;
  const float* grads;
  uint16_t* copy;  // null: none
};

HL_DEVICE void UpdateElement(const AdamWFactors& factors, float weight_decay, const Arrays& arrays,
                             int64_t i) {
  float m = arrays.m[i], v = arrays.v[i];
  const float w = AdamWElement(factors, weight_decay, arrays.grads[i], arrays.main[i], m, v);
  arrays.main[i] = w;
  arrays.m[i] = m;
  arrays.v[i] = v;
  if (arrays.copy != nullptr) reinterpret_cast<bf16*>(arrays.copy)[i] = __float2bfloat16_rn(w);
}

// The values of four elements.
struct Pack {
  HL_DEVICE Pack(const Arrays& arrays, int64_t i)
      : w(*reinterpret_cast<const float4*>(arrays.main + i)),
        m(*reinterpret_cast<const float4*>(arrays.m + i)),
        v(*reinterpret_cast<const float4*>(arrays.v + i)),
        grad(*reinterpret_cast<const float4*>(arrays.grads + i)) {}

  HL_DEVICE void Update(const AdamWFactors& factors, float weight_decay) {
    w.x = AdamWElement(factors, weight_decay, grad.x, w.x, m.x, v.x);
    w.y = AdamWElement(factors, weight_decay, grad.y, w.y, m.y, v.y);
    w.z = AdamWElement(factors, weight_decay, grad.z, w.z, m.z, v.z);
    w.w = AdamWElement(factors, weight_decay, grad.w, w.w, m.w, v.w);
  }

  HL_DEVICE void Store(const Arrays& arrays, int64_t i) const {
    *reinterpret_cast<float4*>(arrays.main + i) = w;
    *reinterpret_cast<float4*>(arrays.m + i) = m;
    *reinterpret_cast<float4*>(arrays.v + i) = v;
    if (arrays.copy != nullptr)
      *reinterpret_cast<uint2*>(arrays.copy + i) =
          make_uint2(PackBf16(w.x, w.y), PackBf16(w.z, w.w));
  }

  float4 w, m, v, grad;
};

// Grid: x strides over a segment, y is the segment. No element is touched by two threads. Packs of
// four elements are read and written at once. The elements before the first and after the last
// pack, and those of a segment whose arrays are not aligned alike, are updated one by one.
__global__ void __launch_bounds__(kThreads) UpdateSegment(AdamWArgs args) {
  const AdamWSegment segment = args.segments[blockIdx.y];
  // The two factors of the segment are read where they are used: sm_80 would spill them.
  HL_SHARED(rates, float[2]);
  if (threadIdx.x == 0) {
    const AdamWFactors own = FactorsOf(args.factors, segment);
    rates[0] = own.lr;
    rates[1] = own.step_size;
  }
  __syncthreads();
  const auto factors = [&] {
    const volatile float* const read = rates;
    AdamWFactors own = args.factors;
    own.lr = read[0];
    own.step_size = read[1];
    return own;
  };
  const Arrays arrays(args, segment);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int phase = arrays.Phase();
  const int64_t head =
      phase < 0 ? segment.end - segment.begin : ((phase - segment.begin) % kPack + kPack) % kPack;
  const int64_t first = min(segment.begin + head, segment.end);
  const int64_t packs = (segment.end - first) / kPack, last = first + packs * kPack;
  for (int64_t i = segment.begin + thread; i < first; i += stride)
    UpdateElement(factors(), segment.weight_decay, arrays, i);
  for (int64_t p = thread; p < packs; p += kPacks * stride) {
    const int64_t i = first + p * kPack, j = i + stride * kPack;
    Pack one(arrays, i);
    if (j >= last) {
      one.Update(factors(), segment.weight_decay);
      one.Store(arrays, i);
      break;
    }
    Pack other(arrays, j);
    one.Update(factors(), segment.weight_decay);
    other.Update(factors(), segment.weight_decay);
    one.Store(arrays, i);
    other.Store(arrays, j);
  }
  for (int64_t i = last + thread; i < segment.end; i += stride)
    UpdateElement(factors(), segment.weight_decay, arrays, i);
}

}  // namespace

namespace cuda {

void AdamW(const AdamWArgs& args, cudaStream_t stream) {
  constexpr int kMaxSegments = 65535;  // of a grid's y
  constexpr int64_t kElements = int64_t{kThreads} * kPacks * kPack;
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
