// The steps of the normaliser outside the scans (one warp per token of a head; its lanes handle the
// columns of V or K), and the backward of a normalised output.
#include "kernels/decay_attention/cuda/normaliser.h"

#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/mean_subtraction.h"
#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/cuda/scan_launch.h"
#include "kernels/decay_attention/cuda/token_head.cuh"

namespace halflife::kernels::decay {
namespace {

HL_EVERYWHERE int64_t NumRows(const DecayAttentionArgs& args) {
  return int64_t{1} * args.batch * args.seq_len * args.num_heads;
}

template <typename T>
__global__ void __launch_bounds__(32) OneKernel(T* one) {
  if (threadIdx.x == 0) StoreRounded(one, 1.0f);
}

template <typename T>
__global__ void __launch_bounds__(32 * kRowWarps) NormaliseKernel(const NormaliseParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t row = WarpRow(), rows = NumRows(args);
  if (row >= rows) return;
  const TokenHead at(row, args.seq_len, args.num_heads);
  float denom = 0;
  for (int i = 0; i < params.num_slices; ++i) denom += params.sums[i * rows + row];
  denom += static_cast<float>(args.norm_eps);
  T* const out = at.In<T>(args.out);
  for (int c = LaneId(); c < args.head_dim_v; c += 32) {
    float sum = 0;
    for (int i = 0; i < params.num_slices; ++i)
      sum += params.numerators[(i * rows + row) * args.head_dim_v + c];
    StoreRounded(out + c, sum / denom);
  }
  if (LaneId() == 0 && args.norm_denom != nullptr)
    static_cast<float*>(args.norm_denom)[row] = denom;
}

template <typename T>
__global__ void __launch_bounds__(32 * kRowWarps)
    NormaliserFactorKernel(const NormaliserFactorParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t row = WarpRow(), rows = NumRows(args);
  if (row >= rows) return;
  const TokenHead at(row, args.seq_len, args.num_heads);
  const T* const q = at.In<T>(args.q, SharedHead(at.head, args.num_q_heads, args.num_heads));
  float of_queries = 0, of_mean = 0;
  for (int c = LaneId(); c < args.head_dim_k; c += 32) {
    float dq = 0;
    for (int i = 0; i < params.num_slices; ++i)
      dq += params.dq[(i * rows + row) * args.head_dim_k + c];
    of_queries = fmaf(ToFloat(q[c]), dq, of_queries);
  }
  const T* const dout = at.In<T>(params.dout);
  const int v_head = SharedHead(at.head, args.num_v_heads, args.num_heads);
  const float* const mean =
      params.mean + (int64_t{1} * at.batch * args.num_v_heads + v_head) * args.head_dim_v;
  for (int c = LaneId(); c < args.head_dim_v; c += 32)
    of_mean = fmaf(ToFloat(dout[c]), mean[c], of_mean);
  const float denom = static_cast<const float*>(args.norm_denom)[row];
  const float sum = WarpSum(fmaf(-of_mean, static_cast<float>(args.norm_eps) / denom, of_queries));
  if (LaneId() == 0) params.factor[row] = -sum;
}

template <typename T>
__global__ void __launch_bounds__(32 * kRowWarps)
    OutputFactorKernel(const OutputFactorParams params) {
  const DecayAttentionArgs& args = params.args;
  const int64_t row = WarpRow();
  if (row >= NumRows(args)) return;
  const TokenHead at(row, args.seq_len, args.num_heads);
  const T* const dout = at.In<T>(params.dout);
  const T* const out = at.In<T>(args.out);
  float sum = 0;
  for (int c = LaneId(); c < args.head_dim_v; c += 32)
    sum = fmaf(ToFloat(dout[c]), ToFloat(out[c]), sum);
  sum = WarpSum(sum);
  if (LaneId() == 0) params.factor[row] = -sum;
}

bool HasTokens(const DecayAttentionArgs& args) { return args.batch > 0 && args.seq_len > 0; }

}  // namespace

void LaunchStoreOne(void* one, DType dtype, cudaStream_t stream) {
  const LaunchShape shape = {1, 32, 0, "decay attention column of ones"};
  if (dtype == DType::kF32) {
    Launch(shape, stream, OneKernel<float>, static_cast<float*>(one));
  } else {
    Launch(shape, stream, OneKernel<bf16>, static_cast<bf16*>(one));
  }
}
void LaunchNormalise(const NormaliseParams& params, cudaStream_t stream) {
  if (!HasTokens(params.args)) return;
  LaunchForRows(NumRows(params.args), "decay attention normaliser", stream, params,
                NormaliseKernel<bf16>, NormaliseKernel<float>);
}
void LaunchNormaliserFactor(const NormaliserFactorParams& params, cudaStream_t stream) {
  if (!HasTokens(params.args)) return;
  LaunchForRows(NumRows(params.args), "decay attention normaliser's gradient", stream, params,
                NormaliserFactorKernel<bf16>, NormaliserFactorKernel<float>);
}
void LaunchOutputFactor(const OutputFactorParams& params, cudaStream_t stream) {
  if (!HasTokens(params.args)) return;
  LaunchForRows(NumRows(params.args), "decay attention normaliser's gradient, of outputs", stream,
                params, OutputFactorKernel<bf16>, OutputFactorKernel<float>);
}

}  // namespace halflife::kernels::decay

namespace halflife::kernels::cuda {

// The sequence of launches for the backward of a normalised output.

int64_t NormalisedBackward::RowsBefore(int heads, int width) const {
  return int64_t{1} * batch_tile_.first_row * heads * width;
}
int64_t NormalisedBackward::TokensBefore(int heads, int width) const {
  return RowsBefore(heads, width) * grads_.forward.seq_len;
}
int64_t NormalisedBackward::StatesBefore(int64_t width) const {
  return int64_t{1} * batch_tile_.first_sequence * grads_.forward.num_heads * width;
}

void NormalisedBackward::Run() const {
  if (has_tokens()) SubtractMean();
  RunOverValues();
  RunOverNormaliser();
}

void NormalisedBackward::SubtractMean() const {
  const DecayAttentionArgs own = BatchTileProblem(grads_.forward, batch_tile_);
  decay::LaunchSubtractMean({own, NumMeanPieces(own), Region<float>(value_mean().sums), mean_,
                             Region<char>(value_mean().values)},
                            stream_);
}

void NormalisedBackward::RunOverValues() const {
  DecayAttentionArgs args = grads_.forward;
  const int heads = args.num_v_heads, V = args.head_dim_v;
  const int64_t row = int64_t{1} * heads * V, before = TokensBefore(heads, V);
  void* const values = args.v.dtype == DType::kF32
                           ? static_cast<void*>(ShiftToBatchStart<float>(
                                 args.workspace, value_mean().values, before))
                           : ShiftToBatchStart<bf16>(args.workspace, value_mean().values, before);
  args.v = {values, row * args.seq_len, row, V, args.v.dtype};
  Scan scan = MakeReverseScan(args, plan_, batch_tile_);
  if (has_tokens())
    scan.value_mean = {
        ShiftToBatchStart<float>(args.workspace, value_mean().mean, RowsBefore(heads, V)),
        static_cast<const char*>(args.checkpoints) + NormCheckpoints(args, plan_)};
  DecayAttentionGradArgs grads = grads_;
  grads.dinitial_state = dinitial_state();
  RunBackward(scan, grads, layout_,
              MakeGradientOutputs(grads_, plan_, layout_, batch_tile_, /*first=*/0), stream_);
}

void NormalisedBackward::RunOverNormaliser() const {
  const DecayAttentionArgs& args = grads_.forward;
  const ReverseNormaliserScan ones =
      MakeReverseNormaliserScan(args, plan_, layout_.normaliser, batch_tile_, stream_);
  // the index of the normaliser's slice, after the slices of V
  const int first = layout_.slices.keys - 1;
  decay::LaunchNormaliserFactor(
      {BatchTileProblem(args, batch_tile_), BatchTileRows(grads_.dout, batch_tile_), mean_, first,
       Region<float>(layout_.dq), ones.factor},
      stream_);
  DecayAttentionGradArgs grads = grads_;
  grads.dout = ones.dout;
  grads.dfinal_state = grads_.dfinal_norm;
  grads.dinitial_state = grads_.dinitial_norm;
  if (has_tokens() && grads_.dfinal_state != nullptr) {
    float* const shifted = ShiftToBatchStart<float>(args.workspace, value_mean().dfinal_norm,
                                                    StatesBefore(args.head_dim_k));
    Shift(grads_.dfinal_state, grads_.dfinal_norm, 1, shifted);
    grads.dfinal_state = shifted;
  }
  GradientOutputs outputs = MakeGradientOutputs(grads_, plan_, layout_, batch_tile_, first);
  outputs.dv = Partial(args, batch_tile_, layout_.normaliser.sums, 1);
  RunBackward(ones.scan, grads, layout_, outputs, stream_);
  if (has_tokens() && grads_.dinitial_norm != nullptr)
    Shift(dinitial_state(), grads_.dinitial_norm, -1, static_cast<float*>(grads_.dinitial_norm));
}

void* NormalisedBackward::dinitial_state() const {
  if (grads_.dinitial_state != nullptr || grads_.dinitial_norm == nullptr)
    return grads_.dinitial_state;
  const DecayAttentionArgs& args = grads_.forward;
  return ShiftToBatchStart<float>(args.workspace, value_mean().dinitial_state,
                                  StatesBefore(int64_t{1} * args.head_dim_k * args.head_dim_v));
}

void NormalisedBackward::Shift(const void* states, const void* norms, float sign,
                               float* shifted) const {
  const DecayAttentionArgs own = BatchTileProblem(grads_.forward, batch_tile_);
  const int64_t before = StatesBefore(own.head_dim_k);
  const auto* const batch_tile_norms =
      norms == nullptr ? nullptr : static_cast<const float*>(norms) + before;
  decay::LaunchShiftNorms({own, mean_, static_cast<const float*>(states) + before * own.head_dim_v,
                           batch_tile_norms, sign, shifted + before},
                          stream_);
}

}  // namespace halflife::kernels::cuda
