// The recurrent (per-token) kernels of decay attention and the decoding step equal the oracle, in
// the emulator.
#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

constexpr DecayKind kKinds[] = {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                DecayKind::kPerToken, DecayKind::kPerTokenChannel};

TEST(CudaSimt, KindsAndNormaliser) {
  for (const DecayKind kind : kKinds)
    for (const bool norm : {false, true}) {
      if (kSlow && !(norm && kind == DecayKind::kPerToken)) continue;
      ExpectGradients({.seq_len = 70,
                       .heads = 1,
                       .dim_k = 24,
                       .dim_v = 40,
                       .kind = kind,
                       .dtype = DType::kF32,
                       .norm = norm,
                       .simt = true});
    }
}

TEST(CudaSimt, AnyLength) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const int seq_len : {1, 63, 64, 65, 128})
    for (const bool norm : {false, true})
      ExpectGradients({.seq_len = seq_len,
                       .heads = 1,
                       .dim_k = 20,
                       .dim_v = 33,
                       .kind = DecayKind::kPerTokenChannel,
                       .dtype = DType::kF32,
                       .norm = norm,
                       .simt = true});
}

// As on a device on which no scan fits.
TEST(CudaSimt, WideHeadsOfBf16) {
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel})
    for (const HeadDims& dims : {HeadDims{130, 24}, HeadDims{24, 130}}) {
      if (kSlow && (kind != DecayKind::kPerTokenChannel || dims.v != 24)) continue;
      ExpectGradients({.seq_len = 66,
                       .heads = 1,
                       .dim_k = dims.k,
                       .dim_v = dims.v,
                       .kind = kind,
                       .simt = true});
    }
}

TEST(CudaSimt, NormaliserOfBf16) {
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
    if (kSlow && kind != DecayKind::kPerToken) continue;
    ExpectGradients({.seq_len = 66,
                     .heads = 1,
                     .dim_k = 40,
                     .dim_v = 24,
                     .kind = kind,
                     .norm = true,
                     .simt = true});
  }
}

TEST(CudaSimt, AdversarialDecays) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : kKinds) {
    if (kind == DecayKind::kNone) continue;
    for (const Strength strength : kAdversarial) {
      const ProblemShape shape = {.seq_len = 130,
                                  .heads = DecayHeads(kind),
                                  .dim_k = 20,
                                  .dim_v = 17,
                                  .kind = kind,
                                  .dtype = DType::kF32,
                                  .strength = strength,
                                  .simt = true};
      SCOPED_TRACE(shape.Name());
      Problem problem(shape);
      problem.Forward();
      problem.Backward();
      // A constant decay's gradient sums over tokens, each of which includes the rounding errors of
      // later tokens of its chunk.
      for (const auto& [name, error] : problem.Compare(true).errors)
        EXPECT_LE(error, name == "dlambda" ? 1e-5 : Gate(shape, name)) << name;
    }
  }
}

// A factor of e^(60/64) has an error of up to 6e-8, in the same direction at each of 64 tokens, so
// the bound is wider.
TEST(CudaSimt, GrowthUpToSixtyAChunk) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : kKinds) {
    if (kind == DecayKind::kNone) continue;
    const ProblemShape shape = {.seq_len = 64,
                                .heads = 1,
                                .dim_k = 20,
                                .dim_v = 17,
                                .kind = kind,
                                .dtype = DType::kF32,
                                .strength = Strength::kGrowth,
                                .simt = true};
    Problem problem(shape);
    problem.Forward();
    problem.Backward();
    ExpectClose(shape, problem.Compare(true), 5);
  }
}

TEST(CudaSimt, DecayNearOneOverManyTokens) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  const ProblemShape shape = {.seq_len = 4096,
                              .heads = 1,
                              .dim_k = 4,
                              .dim_v = 4,
                              .dtype = DType::kF32,
                              .strength = Strength::kNearOne,
                              .simt = true};
  Problem problem(shape);
  problem.Forward();
  ExpectClose(shape, problem.Compare(false), 5);
}

TEST(CudaSimt, SharedHeadsDocumentsAndSizes) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ProblemShape shape = {.batch = 2, .seq_len = 70, .heads = 4, .dim_k = 20, .dim_v = 33};
  shape.dtype = DType::kF32;
  shape.simt = true;
  shape.kind = DecayKind::kPerHeadChannel;
  shape.q_heads = shape.v_heads = 2;
  shape.k_heads = shape.decay_heads = 1;
  shape.key_scale = shape.norm = shape.odd_strides = true;
  ExpectGradients(shape);
  ExpectGradients({.seq_len = 20,
                   .heads = 1,
                   .dim_k = 256,
                   .dim_v = 250,
                   .kind = DecayKind::kPerTokenChannel,
                   .simt = true,
                   .document_starts = {3, 5},
                   .cu_seqlens = {0, 0, 7, 20}});
}

ProblemShape NarrowHead(DecayKind kind) {
  return {.seq_len = 70,
          .heads = 1,
          .dim_k = 20,
          .dim_v = 33,
          .kind = kind,
          .dtype = DType::kF32,
          .simt = true};
}

TEST(CudaSimt, EarlierOutputsDoNotKnowOfLaterTokens) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const int token : {3, 64}) {
      const ProblemShape shape = NarrowHead(kind);
      Problem before(shape), after(shape);
      for (int c = 0; c < shape.dim_k; ++c) {
        after.q_.Set(0, token, 0, c, 3);
        after.k_.Set(0, token, 0, c, -3);
      }
      for (int c = 0; c < after.decay_.width(); ++c) after.decay_.Set(0, token, 0, c, -2);
      before.Forward();
      after.Forward();
      ExpectSameTokens(before.answer_.out, after.answer_.out, 0, token);
      EXPECT_NE(before.answer_.out.Get(0, token, 0, 0), after.answer_.out.Get(0, token, 0, 0));
    }
}

TEST(CudaSimt, GradientsDoNotKnowOfEarlierOutputs) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const int token : {3, 63, 64})
      ExpectGradientsKnowLaterOutputsOnly(NarrowHead(kind), token);
}

// Steps from the initial state equal the forward.
void ExpectSteps(const ProblemShape& shape, bool with_slots) {
  SCOPED_TRACE(shape.Name());
  Problem problem(shape);
  const DecayAttentionArgs args = problem.Args();
  const int slots = shape.batch + 1;
  const size_t state_size = size_t(shape.heads) * shape.dim_k * shape.dim_v;
  const size_t norm_size = size_t(shape.heads) * shape.dim_k;
  std::vector<float> states(slots * state_size, 7), norms(slots * norm_size, 7);
  std::vector<int32_t> slot_of(shape.batch);
  for (int b = 0; b < shape.batch; ++b) {
    slot_of[b] = with_slots ? shape.batch - b : b;
    std::copy_n(&problem.initial_state_[b * state_size], state_size,
                &states[slot_of[b] * state_size]);
    if (shape.norm)
      std::copy_n(&problem.initial_norm_[b * norm_size], norm_size, &norms[slot_of[b] * norm_size]);
  }
  DecayAttentionStepArgs step = problem.StepArgs();
  step.state = states.data();
  step.norm = norms.data();
  if (with_slots) step.slots = slot_of.data();
  for (int t = 0; t < shape.seq_len; ++t) {
    const auto at = [t](TensorView view) {
      if (view.data != nullptr)
        view.data = static_cast<char*>(view.data) + t * view.stride_t * SizeOf(view.dtype);
      return view;
    };
    step.q = at(args.q);
    step.k = at(args.k);
    step.v = at(args.v);
    step.out = at(args.out);
    step.log_decay = IsPerToken(args.decay_kind) ? at(args.log_decay) : args.log_decay;
    step.key_scale = at(args.key_scale);
    cuda::Step(step, nullptr);
  }
  for (int b = 0; b < shape.batch; ++b) {
    std::copy_n(&states[slot_of[b] * state_size], state_size,
                &problem.final_state_[b * state_size]);
    if (shape.norm)
      std::copy_n(&norms[slot_of[b] * norm_size], norm_size, &problem.final_norm_[b * norm_size]);
  }
  ExpectClose(shape, problem.Compare(false));
  if (!with_slots) return;
  for (size_t i = 0; i < state_size; ++i) ASSERT_EQ(states[i], 7) << "an unused slot was written";
  std::fill(slot_of.begin(), slot_of.end(), -1);
  const std::vector<float> before = states;
  cuda::Step(step, nullptr);
  EXPECT_EQ(states, before);
  EXPECT_EQ(problem.answer_.out.Get(0, shape.seq_len - 1, 0, 0), 0);
}

ProblemShape ThreeSteps(DecayKind kind, DType dtype, bool norm) {
  return {.batch = 2,
          .seq_len = 3,
          .heads = 2,
          .dim_k = 20,
          .dim_v = 70,
          .kind = kind,
          .dtype = dtype,
          .norm = norm,
          .key_scale = norm};
}

TEST(CudaStep, StepsAreTheForward) {
  for (const DecayKind kind : kKinds)
    for (const bool norm : {false, true}) ExpectSteps(ThreeSteps(kind, DType::kF32, norm), norm);
}

TEST(CudaStep, NormaliserAndChannelDecaysOfBf16) {
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel})
    for (const bool norm : {false, true}) ExpectSteps(ThreeSteps(kind, DType::kBF16, norm), norm);
}

TEST(CudaStep, SharedHeadsOfBf16) {
  ProblemShape shape = {.batch = 1, .seq_len = 2, .heads = 4};
  shape.q_heads = 2;
  shape.k_heads = shape.decay_heads = 1;
  ExpectSteps(shape, true);
}

}  // namespace
}  // namespace halflife::kernels::test
