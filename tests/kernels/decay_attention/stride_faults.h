// Strides with which a forward or a backward would write an element twice or walk backwards, for
// the CPU and CUDA functions.
//
//   ExpectStrideFaults([&](const GradientChange& change) {
//     ...; change(grads); cpu::Forward(...); cpu::Backward(...);
//   });
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "kernels/decay_attention/decay_attention_args.h"
#include "support/expect_error.h"

namespace halflife::kernels::test {

using GradientChange = std::function<void(DecayAttentionGradArgs&)>;

// run(change) applies `change` and then runs forward and backward with B 2, T 65, H 2, K 24, V 40,
// contiguous tensors, a decay per token and head, key_scale, and all gradients.
inline void ExpectStrideFaults(const std::function<void(const GradientChange&)>& run) {
  const std::pair<const char*, TensorView DecayAttentionGradArgs::*> gradients[] = {
      {"dq", &DecayAttentionGradArgs::dq},
      {"dk", &DecayAttentionGradArgs::dk},
      {"dv", &DecayAttentionGradArgs::dv},
      {"dlog_decay", &DecayAttentionGradArgs::dlog_decay},
      {"dkey_scale", &DecayAttentionGradArgs::dkey_scale}};
  const ExitCode internal = ExitCode::kInternal;
  for (const auto& gradient : gradients) {
    const auto& view = gradient.second;
    const std::string name = std::string("decay attention: ") + gradient.first;
    EXPECT_HL_ERROR(run([&](auto& grads) { (grads.*view).stride_t -= 1; }), internal,
                    name + " [2, 65, 2, ", "would be written twice at one address");
    EXPECT_HL_ERROR(run([&](auto& grads) { (grads.*view).stride_b = 0; }), internal,
                    name + " [2, 65, 2, ", "Pass a contiguous tensor.");
    EXPECT_HL_ERROR(run([&](auto& grads) { (grads.*view).stride_t *= -1; }), internal,
                    name + " has strides ", "Pass a copy without negative strides.");
  }
  EXPECT_HL_ERROR(run([](auto& grads) { grads.dq.stride_h = 23; }), internal,
                  "dq [2, 65, 2, 24] with strides 3120, 48, 23 of b, t, h would be written twice");
  EXPECT_HL_ERROR(run([](auto& grads) { grads.dq.data = nullptr; }), internal, "dq is missing");
  EXPECT_HL_ERROR(run([](auto& grads) { grads.dout.stride_h = -40; }), internal,
                  "dout has strides 5200, 80, -40 of b, t, h");
  EXPECT_HL_ERROR(run([](auto& grads) { grads.forward.out.stride_h = 0; }), internal,
                  "out [2, 65, 2, 40] with strides 5200, 80, 0 of b, t, h would be written twice");
  EXPECT_HL_ERROR(run([](auto& grads) { grads.forward.v.stride_b = -5200; }), internal,
                  "v has strides -5200, 80, 40 of b, t, h");
  EXPECT_HL_ERROR(run([](auto& grads) { grads.forward.k.data = nullptr; }), internal,
                  "k is missing");
  run([](auto&) {});
  run([](auto& grads) {  // Heads before tokens: each element has its own address.
    for (TensorView* view : {&grads.dq, &grads.dk}) view->stride_t = 24, view->stride_h = 65 * 24;
  });
}

}  // namespace halflife::kernels::test
