// The sequence of launches for the backward of a normalised output. Host code.
#include "kernels/decay_attention/cuda/normalised_backward.h"

#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/mean_subtraction.h"
#include "kernels/decay_attention/cuda/normaliser.h"
#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/cuda/scan_launch.h"

namespace halflife::kernels::cuda {

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
                             Region<bf16>(value_mean().values)},
                            stream_);
}

void NormalisedBackward::RunOverValues() const {
  DecayAttentionArgs args = grads_.forward;
  const int heads = args.num_v_heads, V = args.head_dim_v;
  const int64_t row = int64_t{1} * heads * V;
  args.v = {ShiftToBatchStart<bf16>(args.workspace, value_mean().values, TokensBefore(heads, V)),
            row * args.seq_len, row, V, DType::kBF16};
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
