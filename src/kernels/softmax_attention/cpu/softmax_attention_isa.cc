// The entry points of softmax attention. Compiled per instruction set.
#include "kernels/softmax_attention/cpu/kernels.h"

#include "kernels/common/cpu/isa_target.h"

#include "kernels/softmax_attention/cpu/backward.h"
#include "kernels/softmax_attention/cpu/forward.h"
#include "kernels/softmax_attention/cpu/single_query.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::softmax_attention {

// Calls function(T{}) with the compute type.
template <typename Function>
auto WithCompute(const SoftmaxAttentionArgs& args, Function function) {
  return args.q.dtype == DType::kF64 ? function(double{}) : function(float{});
}

inline bool IsSingleQuery(const SoftmaxAttentionArgs& args) {
  return args.num_queries == 1 && args.log_sum == nullptr && !args.dropout.drops();
}

inline size_t ForwardScratchBytes(const SoftmaxAttentionArgs& args) {
  return WithCompute(args, [&](auto sample) {
    using T = decltype(sample);
    ScratchSpace space(nullptr);
    if (IsSingleQuery(args)) {
      const SingleQuery<T> counted(args, space);
    } else {
      const Forward<T> counted(args, space);
    }
    return space.used();
  });
}
inline size_t BackwardScratchBytes(const SoftmaxAttentionGradArgs& args) {
  return WithCompute(args.forward, [&](auto sample) {
    ScratchSpace space(nullptr);
    const Backward<decltype(sample)> counted(args, space);
    return space.used();
  });
}
inline void RunForward(const SoftmaxAttentionArgs& args, const Item& item) {
  WithCompute(args, [&](auto sample) {
    using T = decltype(sample);
    ScratchSpace space(item.scratch);
    if (IsSingleQuery(args)) {
      SingleQuery<T>(args, space).Run(item);
    } else {
      Forward<T>(args, space).Run(item);
    }
  });
}
inline void RunBackward(const SoftmaxAttentionGradArgs& args, const Item& item) {
  WithCompute(args.forward, [&](auto sample) {
    ScratchSpace space(item.scratch);
    Backward<decltype(sample)>(args, space).Run(item);
  });
}

constexpr cpu::softmax_attention::Kernels kKernels = {
    .forward_scratch_bytes = ForwardScratchBytes,
    .backward_scratch_bytes = BackwardScratchBytes,
    .forward = RunForward,
    .backward = RunBackward};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::softmax_attention
