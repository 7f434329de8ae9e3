// Runs the CUDA kernels of the delta rule in the emulator, with operands of type S (float or Bf16).
// Arrays are NaN before a call, so that a result that no thread stores fails a test.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/delta_rule/run_cpu.h"

namespace halflife::kernels::test::delta {

// Bytes of NaN, aligned to 256 as the workspace must be.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t count) : memory_(count + 256) {
    std::memset(memory_.data(), 0xff, memory_.size());
  }
  void* data() {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (256 - address % 256) % 256;
  }

 private:
  std::vector<std::byte> memory_;
};

template <typename S>
void FillWithNaN(std::vector<S>& values) {
  if (!values.empty())
    std::memset(static_cast<void*>(values.data()), 0xff, sizeof(S) * values.size());
}

// Runs the forward of `call`. The results are then in its arrays.
template <typename S>
void RunForward(Call<S>& call) {
  DeltaRuleArgs& args = call.grads.forward;
  AlignedBytes workspace(cuda::DeltaRuleForwardBytes(args));
  FillWithNaN(call.out.data);
  FillWithNaN(call.final_state.data);
  args.workspace = workspace.data();
  cuda::DeltaRuleForward(args, nullptr);
  args.workspace = nullptr;
}
template <typename S>
Result RunCudaForward(const Problem& problem) {
  Call<S> call(problem);
  RunForward(call);
  return call.Get(/*backward=*/false);
}

// Runs the backward of `call`, after its forward. The gradients are then in its arrays.
template <typename S>
void RunBackward(Call<S>& call) {
  DeltaRuleArgs& args = call.grads.forward;
  AlignedBytes workspace(cuda::DeltaRuleBackwardBytes(args));
  for (auto* gradient : {&call.dq, &call.dk, &call.dv}) FillWithNaN(gradient->data);
  for (auto* gradient : {&call.dlog_decay, &call.dbeta, &call.dinitial_state})
    FillWithNaN(gradient->data);
  args.workspace = workspace.data();
  cuda::DeltaRuleBackward(call.grads, nullptr);
  args.workspace = nullptr;
}
template <typename S>
Result RunCuda(const Problem& problem) {
  Call<S> call(problem);
  RunForward(call);
  RunBackward(call);
  return call.Get(/*backward=*/true);
}

template <typename S>
Summary SummariseOnCuda(const Problem& problem) {
  Call<S> call(problem);
  const Case& c = problem.config;
  const size_t heads = static_cast<size_t>(c.num_sequences()) * c.value_heads();
  Array<float> transition(heads * c.K * c.K), state(heads * c.K * c.V);
  DeltaSegmentArgs segment;
  segment.forward = call.grads.forward;
  segment.transition = transition.data.data();
  segment.state = state.data.data();
  AlignedBytes workspace(cuda::DeltaRuleSummaryBytes(segment.forward));
  segment.forward.workspace = workspace.data();
  FillWithNaN(transition.data);
  FillWithNaN(state.data);
  cuda::DeltaRuleSummarise(segment, nullptr);
  return {transition.values(), state.values(), {}};
}

}  // namespace halflife::kernels::test::delta
