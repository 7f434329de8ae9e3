// The normaliser around the scans: a warp has a token of one head, its lanes the columns of V.
#include "kernels/decay_attention/cuda/normaliser.h"

#include "kernels/cuda/grid_blocks.h"

namespace halflife::kernels::decay {
namespace {

constexpr int kWarps = 4;

// A token of one head, as a row of [B, T, H].
struct TokenHead {
  int64_t row;
  int batch, token, head;

  HL_DEVICE TokenHead(const DecayAttentionArgs& args, int64_t index) : row(index) {
    head = static_cast<int>(index % args.num_heads);
    index /= args.num_heads;
    token = static_cast<int>(index % args.seq_len);
    batch = static_cast<int>(index / args.seq_len);
  }
  HL_DEVICE bf16* In(const TensorView& view) const {
    return static_cast<bf16*>(view.data) + batch * view.stride_b + token * view.stride_t +
           head * view.stride_h;
  }
};

HL_DEVICE int64_t NumRows(const DecayAttentionArgs& args) {
  return int64_t{1} * args.batch * args.seq_len * args.num_heads;
}
HL_DEVICE int64_t WarpRow() { return int64_t{1} * blockIdx.x * kWarps + WarpId(); }

__global__ void __launch_bounds__(32) OneKernel(bf16* one) {
  if (threadIdx.x == 0) *one = ToBf16(1.0f);
}

__global__ void __launch_bounds__(32 * kWarps) NormaliseKernel(const NormaliseParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t row = WarpRow(), rows = NumRows(args);
  if (row >= rows) return;
  const TokenHead at(args, row);
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

__global__ void __launch_bounds__(32 * kWarps)
    NormaliserGradientKernel(const NormaliserGradientParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t row = WarpRow();
  if (row == 0 && LaneId() == 0) *params.one = ToBf16(1.0f);
  if (row >= NumRows(args)) return;
  const TokenHead at(args, row);
  const float denom = static_cast<const float*>(args.norm_denom)[row];
  const bf16* const dout = at.In(params.dout);
  const bf16* const out = at.In(args.out);
  float sum = 0;
  for (int c = LaneId(); c < args.head_dim_v; c += 32)
    sum = fmaf(ToFloat(dout[c]), ToFloat(out[c]), sum);
  sum = WarpSum(sum);
  if (LaneId() != 0) return;
  params.of_numerator[row] = 1 / denom;
  params.of_sums[row] = -sum / denom;
}

LaunchShape ShapeFor(const DecayAttentionArgs& args, const char* name) {
  const int64_t rows = int64_t{1} * args.batch * args.seq_len * args.num_heads;
  return {GridBlocks((rows + kWarps - 1) / kWarps, name), 32 * kWarps, 0, name};
}
bool HasTokens(const DecayAttentionArgs& args) { return args.batch > 0 && args.seq_len > 0; }

}  // namespace

void LaunchOne(bf16* one, cudaStream_t stream) {
  Launch({1, 32, 0, "decay attention column of ones"}, stream, OneKernel, one);
}
void LaunchNormalise(const NormaliseParams& params, cudaStream_t stream) {
  if (!HasTokens(params.args)) return;
  Launch(ShapeFor(params.args, "decay attention normaliser"), stream, NormaliseKernel, params);
}
void LaunchNormaliserGradient(const NormaliserGradientParams& params, cudaStream_t stream) {
  if (!HasTokens(params.args)) return LaunchOne(params.one, stream);
  Launch(ShapeFor(params.args, "decay attention normaliser's gradient"), stream,
         NormaliserGradientKernel, params);
}

}  // namespace halflife::kernels::decay
