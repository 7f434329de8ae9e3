// The second stages of decay attention: the scan over segments, and sums of partial gradients in a
// fixed order.
#include <cstdint>
#include <limits>

#include "core/error.h"
#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/launch.h"

namespace halflife::kernels::decay {
namespace {

constexpr int kThreads = 128;

// Uses one thread per item.
LaunchShape ShapeFor(int64_t items, const char* name) {
  return {GridBlocks((items + kThreads - 1) / kThreads, name), kThreads, 0, name};
}

// ---- scan over segments ----

// `kCount` adjacent elements of a state, which have the same transition.
template <int kCount>
struct alignas(4 * kCount) StateElements {
  float x[kCount];
};
// Segments whose states are loaded before the first store, so that the loads overlap.
constexpr int kSegmentsAtOnce = 8;

// One block per state and kThreads * kCount of its elements. Each thread scans the segments of one
// sequence.
template <int kCount>
__global__ void __launch_bounds__(kThreads) SegmentScanKernel(const SegmentScanParams params) {
  using Elements = StateElements<kCount>;
  const int64_t owner = blockIdx.x;
  const int element =
      (static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x)) * kCount;
  if (element >= params.state_elements) return;
  const int per_transition = params.state_elements / params.transitions;
  const int transition = element / per_transition;
  const int64_t own_state = owner * params.state_elements + element;
  float* const states =
      params.states + owner * params.num_segments * params.state_elements + element;
  const float* const log2_transitions =
      params.log2_transition + owner * params.num_segments * params.transitions + transition;
  const auto at = [&](int i) { return params.reverse ? params.num_segments - 1 - i : i; };
  const auto state = [&](int i) {
    return reinterpret_cast<Elements*>(states + int64_t{1} * at(i) * params.state_elements);
  };
  Elements carry = {};
  if (params.initial_state != nullptr)
    carry = *reinterpret_cast<const Elements*>(params.initial_state + own_state);
  float log2_transition = 0;
  bool any_cut = false;
#pragma unroll 1
  for (int first = 0; first < params.num_segments; first += kSegmentsAtOnce) {
    Elements local[kSegmentsAtOnce];
    float log2[kSegmentsAtOnce];
#pragma unroll
    for (int j = 0; j < kSegmentsAtOnce; ++j) {
      if (first + j >= params.num_segments) break;
      local[j] = *state(first + j);
      log2[j] = log2_transitions[at(first + j) * params.transitions];
    }
#pragma unroll
    for (int j = 0; j < kSegmentsAtOnce; ++j) {
      if (first + j >= params.num_segments) break;
      const bool cut = __float_as_uint(log2[j]) == 0xff800000u;  // -inf also drops an earlier NaN
      *state(first + j) = carry;
#pragma unroll
      for (int e = 0; e < kCount; ++e)
        carry.x[e] = cut ? local[j].x[e] : Exp2Approx(log2[j]) * carry.x[e] + local[j].x[e];
      any_cut = any_cut || cut;
      log2_transition = any_cut ? __uint_as_float(0xff800000u) : log2_transition + log2[j];
    }
  }
  if (params.final_state != nullptr)
    *reinterpret_cast<Elements*>(params.final_state + own_state) = carry;
  if (params.log_transition != nullptr && element % per_transition == 0)
    params.log_transition[owner * params.transitions + transition] =
        log2_transition * 0.693147180559945309f;
}

template <int kCount>
void LaunchSegmentScanOf(const SegmentScanParams& params, cudaStream_t stream) {
  constexpr const char* kName = "decay attention segment scan";
  constexpr int kPerBlock = kThreads * kCount;
  const unsigned blocks =
      static_cast<unsigned>((params.state_elements + kPerBlock - 1) / kPerBlock);
  Launch({{GridBlocks(params.num_states, kName), blocks}, kThreads, 0, kName}, stream,
         SegmentScanKernel<kCount>, params);
}

// Channels per thread of ReduceHeads. Index divisions cost more than the sums, so a thread sums
// several.
constexpr int kChannels = 4;

int64_t NumChannelGroups(const ReduceHeadsParams& params) {
  return int64_t{1} * params.batch * params.seq_len * params.num_out_heads *
         ((params.dim + kChannels - 1) / kChannels);
}

// sum += x[0 .. count).
HL_DEVICE void AddChannels(float (&sum)[kChannels], const float* x, int count, bool aligned) {
  if (aligned) {
    const float4 four = *reinterpret_cast<const float4*>(x);
    sum[0] += four.x;
    sum[1] += four.y;
    sum[2] += four.z;
    sum[3] += four.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < kChannels; ++i)
    if (i < count) sum[i] += x[i];
}

__global__ void __launch_bounds__(kThreads) ReduceHeadsKernel(const ReduceHeadsParams params) {
  int64_t item = int64_t{1} * blockIdx.x * kThreads + threadIdx.x;
  const int64_t rows = int64_t{1} * params.batch * params.seq_len;
  const int groups = (params.dim + kChannels - 1) / kChannels;
  if (item >= rows * params.num_out_heads * groups) return;
  const int c = static_cast<int>(item % groups) * kChannels;
  item /= groups;
  const int head = static_cast<int>(item % params.num_out_heads);
  const int64_t row = item / params.num_out_heads;
  const int sharing = params.num_heads / params.num_out_heads;
  const int count = min(kChannels, params.dim - c);
  const bool aligned = params.dim % kChannels == 0;  // the parts of a workspace are aligned
  float sum[kChannels] = {0, 0, 0, 0};
  for (int h = head * sharing; h < (head + 1) * sharing; ++h) {
    for (int slice = 0; slice < params.num_slices; ++slice)
      AddChannels(sum,
                  params.partial + ((slice * rows + row) * params.num_heads + h) * params.dim + c,
                  count, aligned);
  }
  const TensorView& out = params.out;
  const int64_t target = row / params.seq_len * out.stride_b + row % params.seq_len * out.stride_t +
                         head * out.stride_h + c;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    if (i >= count) break;
    if (out.dtype == DType::kBF16) {
      static_cast<bf16*>(out.data)[target + i] = ToBf16(sum[i]);
    } else {
      static_cast<float*>(out.data)[target + i] = sum[i];
    }
  }
}

// One warp per item. Its lanes share the work items of all sequences in an order that depends only
// on the shape and the number of chunks, and their sums are added as a tree.
__global__ void __launch_bounds__(kThreads)
    ReduceConstantKernel(const ReduceConstantParams params) {
  const int item = static_cast<int>(blockIdx.x) * (kThreads / 32) + WarpId();
  if (item >= params.num_out_heads * params.dim) return;
  const int head = item / params.dim, c = item % params.dim;
  const int segments = params.num_chunks == nullptr ? params.num_segments
                                                    : *params.num_chunks * params.parts_of_chunk;
  // The heads that share an output are adjacent within a sequence.
  const int sharing = params.num_heads / params.num_out_heads, own = sharing * segments;
  const int64_t in_sequence = int64_t{1} * params.num_heads * params.num_segments;
  const int64_t pieces = in_sequence * params.num_sequences;
  const int count = own * params.num_sequences;  // fits: see LaunchReduceConstant
  float sum = 0;
  for (int i = LaneId(); i < count; i += 32) {
    const int at = i % own;
    const int64_t at_head = head * sharing + at / segments;
    const int64_t piece = i / own * in_sequence + at_head * params.num_segments + at % segments;
    for (int slice = 0; slice < params.num_slices; ++slice)
      sum += params.partial[(slice * pieces + piece) * params.dim + c];
  }
  sum = WarpSum(sum);
  if (LaneId() == 0) params.out[item] = sum;
}

}  // namespace

void LaunchSegmentScan(const SegmentScanParams& params, cudaStream_t stream) {
  if (params.num_states == 0) return;
  const auto is_aligned = [](const float* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  const bool wide = params.state_elements / params.transitions % 4 == 0 &&
                    is_aligned(params.states) && is_aligned(params.initial_state) &&
                    is_aligned(params.final_state);
  (wide ? LaunchSegmentScanOf<4> : LaunchSegmentScanOf<1>)(params, stream);
}
void LaunchReduceHeads(const ReduceHeadsParams& params, cudaStream_t stream) {
  const int64_t items = NumChannelGroups(params);
  if (items > 0)
    Launch(ShapeFor(items, "decay attention sum over heads"), stream, ReduceHeadsKernel, params);
}
void LaunchReduceConstant(const ReduceConstantParams& params, cudaStream_t stream) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max() - 32;  // a lane's next index
  const int64_t pieces = int64_t{1} * params.num_heads * params.num_segments * params.num_sequences;
  HL_CHECK_AS(ExitCode::kUsage, pieces <= kMax,
              "decay attention: the gradient of a constant decay ", "is a sum of ", pieces,
              " parts, above the limit of ", kMax, ". Split the batch.");
  Launch(ShapeFor(int64_t{32} * params.num_out_heads * params.dim,
                  "decay attention sum of constant decays' gradients"),
         stream, ReduceConstantKernel, params);
}

}  // namespace halflife::kernels::decay
