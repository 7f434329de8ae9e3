// A decoding step of two rows whose states are in slots 0 and `second_slot`. The slots between them
// are only address space.
//
//   const SlotStates states(step, initial_state, initial_norm, FarSlot(step));
//   cpu::Step(states.step());
//   states.Get();  // The states and sums of keys of the two slots after the step.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/decay_attention/decay_attention_args.h"
#include "support/sparse_memory.h"

namespace halflife::kernels::test {

inline int64_t NormSize(const DecayAttentionStepArgs& step) {
  return int64_t{1} * step.num_heads * step.head_dim_k;
}
// Returns a slot whose sums of keys are more than 2^31 elements after those of slot 0.
inline int32_t FarSlot(const DecayAttentionStepArgs& step) {
  return static_cast<int32_t>((int64_t{1} << 31) / NormSize(step) + 5);
}

class SlotStates {
 public:
  // initial_state [2, H, K, V], initial_norm [2, H, K]. `step` must have everything except the
  // state.
  SlotStates(const DecayAttentionStepArgs& step, const std::vector<float>& initial_state,
             const std::vector<float>& initial_norm, int32_t second_slot)
      : step_(step),
        slots_{0, second_slot},
        norm_(NormSize(step)),
        state_(norm_ * step.head_dim_v),
        states_(state_ * (second_slot + 1) * sizeof(float)),
        norms_(norm_ * (second_slot + 1) * sizeof(float)) {
    for (int b = 0; b < 2; ++b) {
      std::copy_n(&initial_state[b * state_], state_, StateOf(b));
      std::copy_n(&initial_norm[b * norm_], norm_, NormOf(b));
    }
  }
  DecayAttentionStepArgs step() const {
    DecayAttentionStepArgs step = step_;
    step.state = states_.data();
    step.norm = norms_.data();
    step.slots = slots_;
    return step;
  }
  std::vector<float> Get() const {
    std::vector<float> values;
    for (int b = 0; b < 2; ++b) {
      values.insert(values.end(), StateOf(b), StateOf(b) + state_);
      values.insert(values.end(), NormOf(b), NormOf(b) + norm_);
    }
    return values;
  }

 private:
  float* StateOf(int b) const { return static_cast<float*>(states_.data()) + slots_[b] * state_; }
  float* NormOf(int b) const { return static_cast<float*>(norms_.data()) + slots_[b] * norm_; }

  DecayAttentionStepArgs step_;
  int32_t slots_[2];
  int64_t norm_, state_;
  halflife::test::SparseMemory states_, norms_;
};

}  // namespace halflife::kernels::test
