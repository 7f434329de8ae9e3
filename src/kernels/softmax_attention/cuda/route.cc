// Which problems the CUDA kernels of softmax attention take. Host code, in every build.
#include "kernels/cuda/pair_attention/launch.h"
#include "kernels/softmax_attention/args.h"

namespace halflife::kernels::cuda {

bool Takes(const SoftmaxAttentionArgs& args) {
  return args.q.dtype == DType::kBF16 && args.head_dim <= pairs::kMaxBlock && !args.has_far() &&
         args.decay_rates == nullptr;
}
int64_t SharedBytes(const SoftmaxAttentionArgs& args) {
  return pairs::SharedBytes(args.head_dim, args.head_dim_v, args.bias != nullptr);
}

}  // namespace halflife::kernels::cuda
