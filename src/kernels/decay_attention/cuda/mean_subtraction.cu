// Subtracts the mean from values: partial sums over blocks of kMeanTokens tokens, the sum of these,
// and the difference, each in a fixed order. One warp handles one block of tokens, one token or one
// row of a state; its lanes handle the columns of V.
#include "kernels/decay_attention/cuda/mean_subtraction.h"

#include "kernels/decay_attention/cuda/token_head.cuh"

namespace halflife::kernels::decay {
namespace {

constexpr int kThreads = 128;

HL_DEVICE float FiniteOrZero(float x) { return fabsf(x) <= 3.402823466e38f ? x : 0.0f; }

template <typename T>
__global__ void __launch_bounds__(32 * kRowWarps) SumTokensKernel(const SubtractMeanParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t item = WarpRow();  // index into [num_pieces, B, Hv]
  const int64_t of_piece = int64_t{1} * args.batch * args.num_v_heads;
  if (item >= of_piece * params.num_pieces) return;
  const int first = static_cast<int>(item / of_piece) * kMeanTokens;
  const int end = min(first + kMeanTokens, args.seq_len);
  const int batch = static_cast<int>(item % of_piece / args.num_v_heads);
  const int head = static_cast<int>(item % args.num_v_heads);
  const T* const v =
      static_cast<const T*>(args.v.data) + batch * args.v.stride_b + head * args.v.stride_h;
  for (int c = LaneId(); c < args.head_dim_v; c += 32) {
    float sum = 0;
#pragma unroll 8
    for (int t = first; t < end; ++t) sum += FiniteOrZero(ToFloat(v[t * args.v.stride_t + c]));
    params.sums[item * args.head_dim_v + c] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) MeanKernel(const SubtractMeanParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t item = int64_t{1} * blockIdx.x * kThreads + threadIdx.x;
  const int64_t count = int64_t{1} * args.batch * args.num_v_heads * args.head_dim_v;
  if (item >= count) return;
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < params.num_pieces; ++i) sum += params.sums[i * count + item];
  params.mean[item] = FiniteOrZero(sum / static_cast<float>(args.seq_len));
}

template <typename T>
__global__ void __launch_bounds__(32 * kRowWarps)
    SubtractMeanKernel(const SubtractMeanParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t row = WarpRow();
  if (row >= int64_t{1} * args.batch * args.seq_len * args.num_v_heads) return;
  const TokenHead at(row, args.seq_len, args.num_v_heads);
  const T* const v = at.In<T>(args.v);
  T* const centred = static_cast<T*>(params.centred) + row * args.head_dim_v;
  const float* const mean =
      params.mean + (int64_t{1} * at.batch * args.num_v_heads + at.head) * args.head_dim_v;
  for (int c = LaneId(); c < args.head_dim_v; c += 32)
    StoreRounded(centred + c, ToFloat(v[c]) - mean[c]);
}

__global__ void __launch_bounds__(32 * kRowWarps) ShiftNormsKernel(const ShiftNormsParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t row = WarpRow();  // index into [num_sequences, H, K]
  if (row >= int64_t{1} * args.num_sequences * args.num_heads * args.head_dim_k) return;
  const int head = static_cast<int>(row / args.head_dim_k % args.num_heads);
  const int64_t sequence = row / args.head_dim_k / args.num_heads;
  const int64_t batch = args.batch == 1 ? 0 : sequence;  // packed sequences share the only row
  const int v_head = SharedHead(head, args.num_v_heads, args.num_heads);
  const float* const mean = params.mean + (batch * args.num_v_heads + v_head) * args.head_dim_v;
  float sum = 0;
  for (int c = LaneId(); c < args.head_dim_v; c += 32)
    sum = fmaf(params.states[row * args.head_dim_v + c], mean[c], sum);
  sum = WarpSum(sum);
  if (LaneId() != 0) return;
  const float norm = params.norms == nullptr ? 0.0f : params.norms[row];
  params.shifted[row] = norm + params.sign * sum;
}

}  // namespace

void LaunchSubtractMean(const SubtractMeanParams& params, cudaStream_t stream) {
  const DecayAttentionArgs& args = params.args;
  const int64_t heads = int64_t{1} * args.batch * args.num_v_heads;
  if (heads == 0 || args.seq_len == 0) return;
  LaunchForRows(heads * params.num_pieces, "decay attention sums of values", stream, params,
                SumTokensKernel<bf16>, SumTokensKernel<float>);
  const int64_t means = heads * args.head_dim_v;
  Launch({GridBlocks((means + kThreads - 1) / kThreads, "decay attention means of values"),
          kThreads, 0, "decay attention means of values"},
         stream, MeanKernel, params);
  LaunchForRows(heads * args.seq_len, "decay attention centred values", stream, params,
                SubtractMeanKernel<bf16>, SubtractMeanKernel<float>);
}
void LaunchShiftNorms(const ShiftNormsParams& params, cudaStream_t stream) {
  const DecayAttentionArgs& args = params.args;
  const int64_t rows = int64_t{1} * args.num_sequences * args.num_heads * args.head_dim_k;
  Launch(ShapeForRows(rows, "decay attention shifted sums of keys"), stream, ShiftNormsKernel,
         params);
}

}  // namespace halflife::kernels::decay
