// Invalid calls of the decoding step, for the CPU and CUDA functions. Each must be refused with a
// message.
//
//   ExpectStepFaults([](const DecayAttentionStepArgs& args) { cpu::Step(args); },
//       /*is_cuda=*/false);
#pragma once

#include <functional>
#include <vector>

#include "kernels/decay_attention/decay_attention_args.h"
#include "support/expect_error.h"

namespace halflife::kernels::test {

using StepEntry = std::function<void(const DecayAttentionStepArgs&)>;

// A valid step: 2 rows of 4 heads in fp32.
struct StepCall {
  static constexpr int kBatch = 2, kHeads = 4, kKeys = 8, kValues = 16;
  std::vector<float> q, k, v, out, log_decay, state, norm;
  DecayAttentionStepArgs args;

  StepCall()
      : q(kBatch * kHeads * kKeys, 0.5f),
        k(q),
        v(kBatch * kHeads * kValues, 0.25f),
        out(v.size()),
        log_decay(q.size(), -0.125f),
        state(kBatch * kHeads * kKeys * kValues),
        norm(q.size()) {
    const auto view = [](std::vector<float>& x, int width) {
      return TensorView{x.data(), kHeads * width, 0, width, DType::kF32};
    };
    args.batch = kBatch;
    args.num_heads = args.num_q_heads = args.num_k_heads = args.num_v_heads = args.num_decay_heads =
        kHeads;
    args.head_dim_k = kKeys;
    args.head_dim_v = kValues;
    args.decay_kind = DecayKind::kPerTokenChannel;
    args.norm_kind = NormKind::kSumOfKeys;
    args.q = view(q, kKeys);
    args.k = view(k, kKeys);
    args.v = view(v, kValues);
    args.out = view(out, kValues);
    args.log_decay = view(log_decay, kKeys);
    args.state = state.data();
    args.norm = norm.data();
  }
  StepCall(const StepCall&) = delete;
};

inline void ExpectStepFaults(const StepEntry& step, bool is_cuda) {
  const auto expect = [&](const auto& change, ExitCode code, const std::string& message) {
    StepCall call;
    change(call.args);
    EXPECT_HL_ERROR(step(call.args), code, message);
    for (const float x : call.out) EXPECT_EQ(x, 0) << message;
  };
  const ExitCode internal = ExitCode::kInternal, usage = ExitCode::kUsage;
  // 3 heads do not divide 4, and 8 are more than 4.
  expect([](auto& args) { args.num_k_heads = 3; }, usage,
         "decay attention step with 4, 3, 4 and 4 heads of q, k, v and log_decay for a state of "
         "4. Use divisors of 4.");
  expect([](auto& args) { args.num_q_heads = 8; }, usage, "step with 8, 4, 4 and 4 heads");
  expect([](auto& args) { args.num_v_heads = 0; }, usage, "step with 4, 4, 0 and 4 heads");
  expect([](auto& args) { args.num_decay_heads = 8; }, usage, "step with 4, 4, 4 and 8 heads");
  expect([](auto& args) { args.num_heads = 0; }, usage, "for a state of 0");
  expect([](auto& args) { args.head_dim_k = 257; }, usage,
         "decay attention step with head sizes 257 and 16. Use K of 1 to 256 and V of 1 to 512.");
  expect([](auto& args) { args.head_dim_v = 513; }, usage, "head sizes 8 and 513");
  expect([](auto& args) { args.head_dim_v = 0; }, usage, "head sizes 8 and 0");
  expect([](auto& args) { args.k.dtype = DType::kBF16; }, usage,
         "q, k, v, out of fp32, bf16, fp32, fp32. Use one of bf16, fp32");
  expect([](auto& args) { args.q.dtype = DType::kI32; }, usage,
         "q, k, v, out of int32, fp32, fp32, fp32");
  expect([](auto& args) { args.log_decay.dtype = DType::kBF16; }, usage,
         "log_decay of bf16 and key_scale of fp32 with q of fp32. Use fp32.");
  expect([](auto& args) { args.batch = -1; }, internal, "step of -1 rows");
  expect([](auto& args) { args.v.data = nullptr; }, internal, "decay attention: v is missing");
  expect([](auto& args) { args.k.stride_b = -1; }, internal, "k has strides -1, 0, 8 of b, t, h");
  expect([](auto& args) { args.out.stride_h = 15; }, internal,
         "out [2, 1, 4, 16] with strides 64, 0, 15 of b, t, h would be written twice");
  expect([](auto& args) { args.state = nullptr; }, internal, "step without a state");
  expect([](auto& args) { args.norm = nullptr; }, internal,
         "a normaliser with no state and norm_eps 1e-30");
  expect([](auto& args) { args.norm_eps = 0; }, internal,
         "a normaliser with a state and norm_eps 0");
  expect([](auto& args) { args.log_decay.data = nullptr; }, internal, "do not agree");
  expect([](auto& args) { args.decay_kind = DecayKind::kNone; }, internal, "do not agree");
  if (is_cuda) {
    expect(
        [](auto& args) {
          for (TensorView* x : {&args.q, &args.k, &args.v, &args.out}) x->dtype = DType::kF64;
        },
        usage, "decay attention step on CUDA with q, k, v, out of fp64, fp64, fp64, fp64");
    expect([](auto& args) { args.decay_kind = DecayKind::kPerHead; }, internal,
           "heads of a constant log_decay or its gradient 8 elements apart. Use a stride of 1.");
  }

  StepCall good;
  step(good.args);
  EXPECT_NE(good.out.front(), 0);
  StepCall none;
  none.args.decay_kind = DecayKind::kNone;
  none.args.log_decay = {};
  none.args.num_decay_heads = 0;  // Zero decay heads.
  step(none.args);
  EXPECT_NE(none.out.front(), 0);
  DecayAttentionStepArgs empty = good.args;  // Without rows, no data pointers are needed.
  empty.batch = 0;
  empty.q.data = empty.k.data = empty.v.data = empty.out.data = empty.state = nullptr;
  step(empty);
}

}  // namespace halflife::kernels::test
