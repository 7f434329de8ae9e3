// The entry points of decay attention's scans and decode step. Compiled per instruction set.
#include "kernels/decay_attention/cpu/kernels.h"

#include "kernels/common/cpu/isa_target.h"

#include "kernels/decay_attention/cpu/reverse_scan.h"
#include "kernels/decay_attention/cpu/step.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

// Calls function.template operator()<T, Decay>() with the compute type and the decay family.
template <typename Function>
void WithFamily(const DecayAttentionArgs& args, Function function) {
  const bool wide = args.q.dtype == DType::kF64;
  if (IsPerChannel(args.decay_kind)) {
    wide ? function.template operator()<double, ChannelDecay>()
         : function.template operator()<float, ChannelDecay>();
  } else {
    wide ? function.template operator()<double, ScalarDecay>()
         : function.template operator()<float, ScalarDecay>();
  }
}

inline size_t ScratchBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                           bool backward) {
  size_t bytes = 0;
  WithFamily(args, [&]<typename T, template <typename> class Decay>() {
    const Shape shape(args, plan);
    const ScanItem item = {.args = &args, .plan = &plan};
    ScratchSpace space(nullptr);
    if (backward) {
      const ReverseScratch<T> scratch(args, plan, shape, space);
    } else {
      const ForwardScratch<T> scratch(shape, space);
    }
    const Decay<T> decay(item, shape, backward, space);
    bytes = space.used();
  });
  return bytes;
}
inline void Forward(const ScanItem& item) {
  WithFamily(*item.args, [&]<typename T, template <typename> class Decay>() {
    ForwardScan<T, Decay, true>(item);
  });
}
inline void State(const ScanItem& item) {
  WithFamily(*item.args, [&]<typename T, template <typename> class Decay>() {
    ForwardScan<T, Decay, false>(item);
  });
}
inline void Backward(const ReverseItem& item) {
  WithFamily(*item.scan.args, [&]<typename T, template <typename> class Decay>() {
    ReverseScan<T, Decay>(item).Run();
  });
}
inline void ReverseState(const ReverseItem& item) {
  WithFamily(*item.scan.args, [&]<typename T, template <typename> class Decay>() {
    ReverseStateScan<T, Decay>(item);
  });
}
inline void Step(const DecayAttentionStepArgs& args, int row, int head) {
  args.q.dtype == DType::kF64 ? StepHead<double>(args, row, head)
                              : StepHead<float>(args, row, head);
}

constexpr Kernels kKernels = {.scratch_bytes = ScratchBytes,
                              .forward = Forward,
                              .state = State,
                              .backward = Backward,
                              .reverse_state = ReverseState,
                              .step = Step};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
