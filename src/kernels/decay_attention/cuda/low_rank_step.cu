#include "kernels/decay_attention/low_rank_step.h"

#include "kernels/decay_attention/cuda/step.cuh"
#include "kernels/decay_attention/decay_attention_call_checks.h"

namespace halflife::kernels::cuda {

void LowRankStep(const DecayAttentionStepArgs& args, const LowRankDecay& decay,
                 cudaStream_t stream) {
  DecayAttentionStepArgs without = args;
  without.decay_kind = DecayKind::kNone;
  CheckStep(without, /*is_cuda=*/true);
  HL_CHECK(args.q.dtype == DType::kBF16 && args.decay_kind == DecayKind::kPerTokenChannel &&
               args.log_decay.data == nullptr && args.num_decay_heads >= 1 &&
               args.num_heads % args.num_decay_heads == 0,
           "decay attention step with a decay of two matrices. Use bf16, a decay per token and "
           "channel, and heads that divide those of the state.");
  HL_CHECK(decay.rank >= 8 && decay.rank <= kMaxDecayRank && decay.rank % 8 == 0 &&
               decay.hidden_stride % 8 == 0,
           "decay attention step with a decay of rank ", decay.rank, " and rows ",
           decay.hidden_stride, " apart. Use multiples of 8, and a rank of at most ", kMaxDecayRank,
           ".");
  if (args.batch > 0) decay::LaunchStep<bf16, true>(args, decay, stream);
}

}  // namespace halflife::kernels::cuda
