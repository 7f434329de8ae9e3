// The entry points of the delta rule's scans and decode step. Compiled per instruction set.
#include "kernels/delta_rule/cpu/kernels.h"

#include "kernels/common/cpu/isa_target.h"

#include "kernels/delta_rule/cpu/reverse.h"
#include "kernels/delta_rule/cpu/step.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta {

// Calls function.template operator()<T, Decay>() with the compute type and the kind of decay.
template <typename Function>
void WithKind(const DeltaRuleArgs& args, Function function) {
  const bool wide = args.q.dtype == DType::kF64;
  if (args.decay == DeltaDecay::kPerTokenChannel) {
    wide ? function.template operator()<double, ChannelDecay>()
         : function.template operator()<float, ChannelDecay>();
  } else {
    wide ? function.template operator()<double, ScalarDecay>()
         : function.template operator()<float, ScalarDecay>();
  }
}

inline size_t ScratchBytes(const DeltaRuleArgs& args, int values, bool backward) {
  size_t bytes = 0;
  WithKind(args, [&]<typename T, template <typename> class Decay>() {
    const Shape shape(args, values);
    const ScanItem item = {.args = &args};
    ScratchSpace space(nullptr);
    if (backward) {
      const ReverseScratch<T, Decay> scratch(item, shape, space);
    } else {
      const ForwardScratch<T, Decay> scratch(item, shape, space);
    }
    bytes = space.used();
  });
  return bytes;
}
inline void Forward(const ScanItem& item) {
  WithKind(*item.args, [&]<typename T, template <typename> class Decay>() {
    ForwardScan<T, Decay, true>(item);
  });
}
inline void State(const ScanItem& item) {
  WithKind(*item.args, [&]<typename T, template <typename> class Decay>() {
    ForwardScan<T, Decay, false>(item);
  });
}
inline void Backward(const ReverseItem& item) {
  WithKind(*item.scan.args, [&]<typename T, template <typename> class Decay>() {
    ReverseScan<T, Decay>(item).Run();
  });
}
inline void Adjoint(const ReverseItem& item) {
  WithKind(*item.scan.args,
           [&]<typename T, template <typename> class Decay>() { AdjointScan<T, Decay>(item); });
}
inline void Step(const DeltaRuleStepArgs& args, int row, int head) {
  args.q.dtype == DType::kF64 ? StepHead<double>(args, row, head)
                              : StepHead<float>(args, row, head);
}

constexpr cpu::delta::Kernels kKernels = {.scratch_bytes = ScratchBytes,
                                          .forward = Forward,
                                          .state = State,
                                          .backward = Backward,
                                          .adjoint = Adjoint,
                                          .step = Step};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta
