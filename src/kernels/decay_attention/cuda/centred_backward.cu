// The sequence of launches for the backward of a normalised output. Host code.
#include "kernels/decay_attention/cuda/centred_backward.h"

#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/centre.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/normaliser.h"
#include "kernels/decay_attention/cuda/one_scan.h"
#include "kernels/decay_attention/cuda/route.h"

namespace halflife::kernels::cuda {

int64_t CentredBackward::RowsBefore(int heads, int width) const {
  return int64_t{1} * turn_.first_row * heads * width;
}
int64_t CentredBackward::TokensBefore(int heads, int width) const {
  return RowsBefore(heads, width) * grads_.forward.seq_len;
}
int64_t CentredBackward::StatesBefore(int64_t width) const {
  return int64_t{1} * turn_.first_sequence * grads_.forward.num_heads * width;
}

void CentredBackward::Run() const {
  if (has_tokens()) Centre();
  RunOverValues();
  RunOverOnes();
}

void CentredBackward::Centre() const {
  const DecayAttentionArgs own = ProblemOfTurn(grads_.forward, turn_);
  decay::LaunchCentre(
      {own, NumMeanPieces(own), Region<float>(centre().sums), mean_, Region<bf16>(centre().values)},
      stream_);
}

void CentredBackward::RunOverValues() const {
  DecayAttentionArgs args = grads_.forward;
  const int heads = args.num_v_heads, V = args.head_dim_v;
  const int64_t row = int64_t{1} * heads * V;
  args.v = {BeforeTurn<bf16>(args.workspace, centre().values, TokensBefore(heads, V)),
            row * args.seq_len, row, V, DType::kBF16};
  Scan scan = ReverseScanOf(args, plan_, turn_);
  if (has_tokens())
    scan.centre = {BeforeTurn<float>(args.workspace, centre().mean, RowsBefore(heads, V)),
                   static_cast<const char*>(args.checkpoints) + NormCheckpoints(args, plan_)};
  DecayAttentionGradArgs grads = grads_;
  grads.dinitial_state = dinitial_state();
  RunBackward(scan, grads, layout_, PlacesOf(grads_, plan_, layout_, turn_, /*first=*/0), stream_);
}

void CentredBackward::RunOverOnes() const {
  const DecayAttentionArgs& args = grads_.forward;
  const ReverseScanOfOnes ones =
      MakeReverseScanOfOnes(args, plan_, layout_.normaliser, turn_, stream_);
  // the index of the normaliser's slice, after the slices of V
  const int first = layout_.slices.keys - 1;
  decay::LaunchCentredFactor({ProblemOfTurn(args, turn_), RowsOfTurn(grads_.dout, turn_), mean_,
                              first, Region<float>(layout_.dq), ones.factor},
                             stream_);
  DecayAttentionGradArgs grads = grads_;
  grads.dout = ones.dout;
  grads.dfinal_state = grads_.dfinal_norm;
  grads.dinitial_state = grads_.dinitial_norm;
  if (has_tokens() && grads_.dfinal_state != nullptr) {
    float* const shifted =
        BeforeTurn<float>(args.workspace, centre().dfinal_norm, StatesBefore(args.head_dim_k));
    Shift(grads_.dfinal_state, grads_.dfinal_norm, 1, shifted);
    grads.dfinal_state = shifted;
  }
  GradientPlaces places = PlacesOf(grads_, plan_, layout_, turn_, first);
  places.dv = Partial(args, turn_, layout_.normaliser.sums, 1);
  RunBackward(ones.scan, grads, layout_, places, stream_);
  if (has_tokens() && grads_.dinitial_norm != nullptr)
    Shift(dinitial_state(), grads_.dinitial_norm, -1, static_cast<float*>(grads_.dinitial_norm));
}

void* CentredBackward::dinitial_state() const {
  if (grads_.dinitial_state != nullptr || grads_.dinitial_norm == nullptr)
    return grads_.dinitial_state;
  const DecayAttentionArgs& args = grads_.forward;
  return BeforeTurn<float>(args.workspace, centre().dinitial_state,
                           StatesBefore(int64_t{1} * args.head_dim_k * args.head_dim_v));
}

void CentredBackward::Shift(const void* states, const void* norms, float sign,
                            float* shifted) const {
  const DecayAttentionArgs own = ProblemOfTurn(grads_.forward, turn_);
  const int64_t before = StatesBefore(own.head_dim_k);
  const auto* const of_turn =
      norms == nullptr ? nullptr : static_cast<const float*>(norms) + before;
  decay::LaunchShiftNorms({own, mean_, static_cast<const float*>(states) + before * own.head_dim_v,
                           of_turn, sign, shifted + before},
                          stream_);
}

}  // namespace halflife::kernels::cuda
