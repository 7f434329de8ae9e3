#include <string>

#include "core/concat.h"
#include "kernels/common/cuda/pair_attention/launch.h"
#include "kernels/softmax_attention/softmax_attention_args.h"

namespace halflife::kernels::cuda {

std::string WhyNot(const SoftmaxAttentionArgs& args, int64_t shared_memory_bytes) {
  constexpr int kFewQueries = kAttentionTile / 4;
  if (args.q.dtype != DType::kBF16) return Concat(Name(args.q.dtype), ", not bf16");
  if (args.has_far()) return "far pairs of their own";
  if (args.decay_rates != nullptr) return "decay with distance";
  if (args.head_dim > pairs::kMaxBlock)
    return Concat("heads of ", args.head_dim, " channels, more than ", pairs::kMaxBlock);
  // Tiles would be nearly empty, and one block per head would not fill a GPU.
  if (args.num_queries < kFewQueries)
    return Concat(args.num_queries, " queries, less than ", kFewQueries);
  const int64_t bytes = pairs::SharedBytes(args.head_dim, args.head_dim_v, args.bias != nullptr,
                                           args.dropout.drops());
  if (bytes > shared_memory_bytes)
    return Concat("blocks of ", bytes, " bytes of shared memory, of which the device has ",
                  shared_memory_bytes);
  return "";
}

}  // namespace halflife::kernels::cuda
