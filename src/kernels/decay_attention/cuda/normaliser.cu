// The steps of the normaliser outside the scans: one warp per token of a head; its lanes handle the
// columns of V or K.
#include "kernels/decay_attention/cuda/normaliser.h"

#include "kernels/decay_attention/cuda/token_head.cuh"

namespace halflife::kernels::decay {
namespace {

HL_EVERYWHERE int64_t NumRows(const DecayAttentionArgs& args) {
  return int64_t{1} * args.batch * args.seq_len * args.num_heads;
}

__global__ void __launch_bounds__(32) OneKernel(bf16* one) {
  if (threadIdx.x == 0) *one = ToBf16(1.0f);
}

__global__ void __launch_bounds__(32 * kRowWarps) NormaliseKernel(const NormaliseParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t row = WarpRow(), rows = NumRows(args);
  if (row >= rows) return;
  const TokenHead at(row, args.seq_len, args.num_heads);
  float denom = 0;
  for (int i = 0; i < params.num_slices; ++i) denom += params.sums[i * rows + row];
  denom += static_cast<float>(args.norm_eps);
  bf16* const out = at.In(args.out);
  for (int c = LaneId(); c < args.head_dim_v; c += 32) {
    float sum = 0;
    for (int i = 0; i < params.num_slices; ++i)
      sum += params.numerators[(i * rows + row) * args.head_dim_v + c];
    out[c] = ToBf16(sum / denom);
  }
  if (LaneId() == 0 && args.norm_denom != nullptr)
    static_cast<float*>(args.norm_denom)[row] = denom;
}

__global__ void __launch_bounds__(32 * kRowWarps)
    NormaliserFactorKernel(const NormaliserFactorParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t row = WarpRow(), rows = NumRows(args);
  if (row >= rows) return;
  const TokenHead at(row, args.seq_len, args.num_heads);
  const bf16* const q = at.In(args.q, SharedHead(at.head, args.num_q_heads, args.num_heads));
  float of_queries = 0, of_mean = 0;
  for (int c = LaneId(); c < args.head_dim_k; c += 32) {
    float dq = 0;
    for (int i = 0; i < params.num_slices; ++i)
      dq += params.dq[(i * rows + row) * args.head_dim_k + c];
    of_queries = fmaf(ToFloat(q[c]), dq, of_queries);
  }
  const bf16* const dout = at.In(params.dout);
  const int v_head = SharedHead(at.head, args.num_v_heads, args.num_heads);
  const float* const mean =
      params.mean + (int64_t{1} * at.batch * args.num_v_heads + v_head) * args.head_dim_v;
  for (int c = LaneId(); c < args.head_dim_v; c += 32)
    of_mean = fmaf(ToFloat(dout[c]), mean[c], of_mean);
  const float denom = static_cast<const float*>(args.norm_denom)[row];
  const float sum = WarpSum(fmaf(-of_mean, static_cast<float>(args.norm_eps) / denom, of_queries));
  if (LaneId() == 0) params.factor[row] = -sum;
}

__global__ void __launch_bounds__(32 * kRowWarps)
    OutputFactorKernel(const OutputFactorParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t row = WarpRow();
  if (row >= NumRows(args)) return;
  const TokenHead at(row, args.seq_len, args.num_heads);
  const bf16* const dout = at.In(params.dout);
  const bf16* const out = at.In(args.out);
  float sum = 0;
  for (int c = LaneId(); c < args.head_dim_v; c += 32)
    sum = fmaf(ToFloat(dout[c]), ToFloat(out[c]), sum);
  sum = WarpSum(sum);
  if (LaneId() == 0) params.factor[row] = -sum;
}

bool HasTokens(const DecayAttentionArgs& args) { return args.batch > 0 && args.seq_len > 0; }

}  // namespace

void LaunchStoreOne(bf16* one, cudaStream_t stream) {
  Launch({1, 32, 0, "decay attention column of ones"}, stream, OneKernel, one);
}
void LaunchNormalise(const NormaliseParams& params, cudaStream_t stream) {
  if (!HasTokens(params.args)) return;
  Launch(ShapeForRows(NumRows(params.args), "decay attention normaliser"), stream, NormaliseKernel,
         params);
}
void LaunchNormaliserFactor(const NormaliserFactorParams& params, cudaStream_t stream) {
  if (!HasTokens(params.args)) return;
  Launch(ShapeForRows(NumRows(params.args), "decay attention normaliser's gradient"), stream,
         NormaliserFactorKernel, params);
}
void LaunchOutputFactor(const OutputFactorParams& params, cudaStream_t stream) {
  if (!HasTokens(params.args)) return;
  Launch(ShapeForRows(NumRows(params.args), "decay attention normaliser's gradient, of outputs"),
         stream, OutputFactorKernel, params);
}

}  // namespace halflife::kernels::decay
