// Which problems the CUDA kernels of softmax attention take. Host code, in every build.
#include "kernels/softmax_attention/cuda/launch.h"

namespace halflife::kernels::cuda {

using namespace softmax;

bool Takes(const SoftmaxAttentionArgs& args) {
  return args.q.dtype == DType::kBF16 && args.head_dim <= kMaxBlock && !args.has_far() &&
         args.decay_rates == nullptr;
}

int64_t SharedBytes(const SoftmaxAttentionArgs& args) {
  const int d = BlockOf(args.head_dim), v = BlockOf(args.head_dim_v);
  const bool sliced = NumSlices(args) > 1;
  const int64_t sizes[] = {ForwardBytes(d, v), QueryGradientBytes(d, v, sliced),
                           KeyGradientBytes(d, v, sliced),
                           args.bias == nullptr ? 0 : BiasGradientBytes(d, v)};
  int64_t most = 0;
  for (const int64_t size : sizes) most = size > most ? size : most;
  return most;
}

}  // namespace halflife::kernels::cuda
