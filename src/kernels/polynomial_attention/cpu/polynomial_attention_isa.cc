// The entry points of polynomial attention. Compiled per instruction set.
#include "kernels/polynomial_attention/cpu/kernels.h"

#include "kernels/common/cpu/isa_target.h"

#include "kernels/polynomial_attention/cpu/scan.h"
#include "kernels/polynomial_attention/cpu/step.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::polynomial {

template <typename T, Pass kPass>
size_t ScratchBytesOf(const PolynomialAttentionArgs& args, const Sizes& sizes) {
  ScratchSpace space(nullptr);
  const Scan<T, kPass> scan(args, sizes, space);
  return space.used();
}
template <typename T>
size_t ScratchBytesOf(const PolynomialAttentionArgs& args, const Sizes& sizes, bool backward) {
  if (!backward) return ScratchBytesOf<T, Pass::kForward>(args, sizes);
  return std::max(ScratchBytesOf<T, Pass::kQueryGradient>(args, sizes),
                  ScratchBytesOf<T, Pass::kKeyGradient>(args, sizes));
}
inline size_t ScratchBytes(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan,
                           int max_chunks, bool backward) {
  const Sizes sizes(args, plan, max_chunks);
  return args.q.dtype == DType::kF64 ? ScratchBytesOf<double>(args, sizes, backward)
                                     : ScratchBytesOf<float>(args, sizes, backward);
}

template <typename T, Pass kPass>
bool RunScan(const ScanItem& item) {
  const PolynomialAttentionArgs& args = item.grads->forward;
  ScratchSpace space(item.scratch);
  return Scan<T, kPass>(args, Sizes(args, *item.plan, item.end - item.begin), space).Run(item);
}
template <typename T>
bool RunScan(const ScanItem& item, Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return RunScan<T, Pass::kForward>(item);
    case Pass::kQueryGradient:
      return RunScan<T, Pass::kQueryGradient>(item);
    case Pass::kKeyGradient:
      break;
  }
  return RunScan<T, Pass::kKeyGradient>(item);
}
inline bool ScanSequence(const ScanItem& item, Pass pass) {
  return item.grads->forward.q.dtype == DType::kF64 ? RunScan<double>(item, pass)
                                                    : RunScan<float>(item, pass);
}

inline void Step(const PolynomialAttentionStepArgs& args, int row, int head) {
  args.q.dtype == DType::kF64 ? StepHead<double>(args, row, head).Run(head)
                              : StepHead<float>(args, row, head).Run(head);
}

constexpr cpu::polynomial::Kernels kKernels = {
    .scratch_bytes = ScratchBytes, .scan = ScanSequence, .step = Step};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::polynomial
