// The backward of a normalised output: which launches it is. Host code.
#include "kernels/decay_attention/cuda/centred_backward.h"

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/decay_attention/cuda/centre.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/normaliser.h"
#include "kernels/decay_attention/cuda/one_scan.h"
#include "kernels/decay_attention/cuda/route.h"

namespace halflife::kernels::cuda {

void CentredBackward::Run() const {
  const DecayAttentionArgs& args = grads_.forward;
  if (has_tokens())
    decay::LaunchCentre({args, NumMeanPieces(args), Region<float>(centre().sums), mean_,
                         Region<bf16>(centre().values)},
                        stream_);
  const float* const dq = RunOverValues();
  RunOverOnes(dq);
}

const float* CentredBackward::RunOverValues() const {
  DecayAttentionArgs args = grads_.forward;
  const int64_t row = int64_t{1} * args.num_v_heads * args.head_dim_v;
  args.v = {Region<bf16>(centre().values), row * args.seq_len, row, args.head_dim_v, DType::kBF16};
  Scan scan = ReverseScanOf(args, plan_);
  if (has_tokens())
    scan.centre = {mean_,
                   static_cast<const char*>(args.checkpoints) + NormCheckpoints(args, plan_)};
  DecayAttentionGradArgs grads = grads_;
  grads.dinitial_state = dinitial_state();
  const GradientPlaces places = PlacesOf(grads_, plan_, layout_, /*first=*/0);
  RunBackward(scan, grads, layout_, places, stream_);
  return static_cast<const float*>(places.dq.data);
}

void CentredBackward::RunOverOnes(const float* dq) const {
  const DecayAttentionArgs& args = grads_.forward;
  const ReverseScanOfOnes ones = MakeReverseScanOfOnes(args, plan_, layout_.normaliser, stream_);
  const int first = SlicesOf(args, plan_.backward).values;
  decay::LaunchCentredFactor({args, grads_.dout, mean_, first, dq, ones.factor}, stream_);
  DecayAttentionGradArgs grads = grads_;
  grads.dout = ones.dout;
  grads.dfinal_state = grads_.dfinal_norm;
  grads.dinitial_state = grads_.dinitial_norm;
  if (has_tokens() && grads_.dfinal_state != nullptr) {
    float* const shifted = Region<float>(centre().dfinal_norm);
    Shift(grads_.dfinal_state, grads_.dfinal_norm, 1, shifted);
    grads.dfinal_state = shifted;
  }
  GradientPlaces places = PlacesOf(grads_, plan_, layout_, first);
  places.dv = Partial(args, layout_.normaliser.sums, 1);
  RunBackward(ones.scan, grads, layout_, places, stream_);
  if (has_tokens() && grads_.dinitial_norm != nullptr)
    Shift(dinitial_state(), grads_.dinitial_norm, -1, static_cast<float*>(grads_.dinitial_norm));
}

void* CentredBackward::dinitial_state() const {
  if (grads_.dinitial_state != nullptr || grads_.dinitial_norm == nullptr)
    return grads_.dinitial_state;
  return Region<float>(centre().dinitial_state);
}

void CentredBackward::Shift(const void* states, const void* norms, float sign,
                            float* shifted) const {
  decay::LaunchShiftNorms({grads_.forward, mean_, static_cast<const float*>(states),
                           static_cast<const float*>(norms), sign, shifted},
                          stream_);
}

}  // namespace halflife::kernels::cuda
