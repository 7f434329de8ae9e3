// The calls that decay attention's CUDA functions refuse, and their results for NaN and empty
// inputs, in the emulator.
#include "kernels/decay_attention/cuda/expect.h"
#include "kernels/decay_attention/step_faults.h"
#include "kernels/decay_attention/stride_faults.h"

namespace halflife::kernels::test {
namespace {

TEST(CudaBadInput, StepsThatDoNotFit) {
  ExpectStepFaults([](const DecayAttentionStepArgs& args) { cuda::Step(args, nullptr); },
                   /*is_cuda=*/true);
}

TEST(CudaBadInput, StridesThatDoNotFit) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ExpectStrideFaults([](const GradientChange& change) {
    Problem problem({.batch = 2, .dim_k = 24, .dim_v = 40, .key_scale = true});
    DecayAttentionGradArgs grads = problem.GradArgs();
    const DecayAttentionPlan plan = problem.Plan();
    std::vector<std::byte> checkpoints(CheckpointBytes(grads.forward, plan)),
        workspace(BackwardWorkspaceBytes(grads.forward, plan));
    grads.forward.checkpoints = checkpoints.data();
    grads.forward.workspace = workspace.data();
    change(grads);
    cuda::Forward(grads.forward, plan, nullptr);
    cuda::Backward(grads, plan, nullptr);
  });
}

TEST(CudaBadInput, ConstantDecaysWithGaps) {
  Problem problem({.seq_len = 10, .kind = DecayKind::kPerHead});
  DecayAttentionArgs args = problem.Args();
  args.log_decay.stride_h = 3;
  EXPECT_HL_ERROR(
      cuda::Forward(args, problem.Plan(), nullptr), ExitCode::kInternal,
      "heads of a constant log_decay or its gradient 3 elements apart. Use a stride of 1.");
}

// Without tokens, the state and its gradient are passed through, and constant decays have a zero
// gradient.
TEST(CudaEmpty, NoTokensAndNoRows) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const auto& [dtype, simt] : kOperandRoutes)
    for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                 DecayKind::kPerToken, DecayKind::kPerTokenChannel})
      for (const bool norm : {false, true}) {
        ProblemShape shape = {.batch = 2, .seq_len = 0, .dim_k = 24, .dim_v = 40, .kind = kind};
        shape.dtype = dtype;
        shape.simt = simt;
        shape.norm = norm;
        SCOPED_TRACE(shape.Name());
        Problem no_tokens(shape);
        no_tokens.Forward(/*with_checkpoints=*/true);
        no_tokens.Backward();
        EXPECT_EQ(no_tokens.final_state_, no_tokens.initial_state_);
        EXPECT_EQ(no_tokens.dinitial_state_, no_tokens.dfinal_state_);
        if (norm) {
          EXPECT_EQ(no_tokens.final_norm_, no_tokens.initial_norm_);
          EXPECT_EQ(no_tokens.dinitial_norm_, no_tokens.dfinal_norm_);
        }
        if (kind == DecayKind::kPerHead || kind == DecayKind::kPerHeadChannel) {
          for (int h = 0; h < 2; ++h)
            for (int c = 0; c < no_tokens.answer_.dlog_decay.width(); ++c)
              EXPECT_EQ(no_tokens.answer_.dlog_decay.Get(0, 0, h, c), 0);
        }
        shape.batch = 0;
        shape.seq_len = 5;
        Problem no_rows(shape);
        no_rows.Forward(/*with_checkpoints=*/true);
        no_rows.Backward();
      }
}

// Bulk copies read some rows or none.
TEST(CudaEmpty, NoTokensWhereWarpgroupsWouldTakeSome) {
  for (const int batch : {1, 2}) {
    Problem problem({.batch = batch, .seq_len = 0, .dim_k = 128, .dim_v = 128, .warpgroups = true});
    problem.Forward(/*with_checkpoints=*/true);
    problem.Backward();
    EXPECT_EQ(problem.final_state_, problem.initial_state_);
    EXPECT_EQ(problem.dinitial_state_, problem.dfinal_state_);
  }
}

// The token, head and document that contain the NaN.
struct NanPlace {
  int token, head, begin, end;
};
constexpr int kNanTokens = 100;

// Expects equal bits in heads and documents that the NaN does not affect.
void ExpectSameElsewhere(const Tensor& got, const Tensor& clean, const NanPlace& nan) {
  for (int t = 0; t < kNanTokens; ++t)
    for (int h = 0; h < got.heads(); ++h) {
      if (h == nan.head && t >= nan.begin && t < nan.end) continue;
      for (int c = 0; c < got.width(); ++c)
        ASSERT_EQ(got.Get(0, t, h, c), clean.Get(0, t, h, c)) << "t " << t << " h " << h;
    }
}

// Expects that outputs of the document and head are unchanged before token `heard`, and NaN from
// there on (or only in it).
void ExpectHeardAfterwards(const Tensor& got, const Tensor& clean, const NanPlace& nan, int heard,
                           bool token_alone) {
  for (int t = nan.begin; t < nan.end; ++t)
    for (int c = 0; c < got.width(); ++c) {
      const double x = got.Get(0, t, nan.head, c);
      const bool before = t < heard || (token_alone && t > nan.token);
      ASSERT_TRUE(!before || x == clean.Get(0, t, nan.head, c))
          << "t " << t << " depends on the NaN: " << x;
      const bool after = t == nan.token || (t > nan.token && !token_alone);
      ASSERT_TRUE(!after || std::isnan(x)) << "t " << t << " does not depend on the NaN";
    }
}

void ExpectNanStays(const Problem& clean, Tensor Problem::*operand, const NanPlace& nan,
                    int heard) {
  const ProblemShape& shape = clean.shape();
  SCOPED_TRACE(Concat(shape.Name(), ", token ", nan.token));
  Problem poisoned(shape);
  for (int c = 0; c < (poisoned.*operand).width(); ++c)
    (poisoned.*operand).Set(0, nan.token, nan.head, c, NAN);
  poisoned.Forward(/*with_checkpoints=*/true);
  poisoned.Backward();
  ExpectSameElsewhere(poisoned.answer_.out, clean.answer_.out, nan);
  ExpectHeardAfterwards(poisoned.answer_.out, clean.answer_.out, nan, heard,
                        operand == &Problem::q_);
  ExpectSameElsewhere(poisoned.answer_.dq, clean.answer_.dq, nan);
  ExpectSameElsewhere(poisoned.answer_.dk, clean.answer_.dk, nan);
  ExpectSameElsewhere(poisoned.answer_.dv, clean.answer_.dv, nan);
  if (IsPerToken(shape.kind))
    ExpectSameElsewhere(poisoned.answer_.dlog_decay, clean.answer_.dlog_decay, nan);
  const int size = shape.dim_k * shape.dim_v;
  const bool reaches_the_end = nan.end == kNanTokens && operand != &Problem::q_;
  for (int i = 0; i < shape.heads * size; ++i) {
    if (reaches_the_end && i / size == nan.head) {
      ASSERT_TRUE(std::isnan(poisoned.final_state_[i])) << i;
    } else {
      ASSERT_EQ(poisoned.final_state_[i], clean.final_state_[i]) << i;
    }
  }
}

TEST(CudaNan, StaysInItsDocumentAndHeadAndAfterItsToken) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ProblemShape shape = {.seq_len = kNanTokens, .heads = 2, .dim_k = 20, .dim_v = 24};
  shape.document_starts = {70};
  shape.key_scale = true;
  for (const auto& [dtype, simt] : kOperandRoutes)
    for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                 DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
      shape.dtype = dtype;
      shape.simt = simt;
      shape.kind = kind;
      Problem clean(shape);
      clean.Forward(/*with_checkpoints=*/true);
      clean.Backward();
      for (const NanPlace& nan : {NanPlace{37, 1, 0, 70}, NanPlace{91, 1, 70, kNanTokens}}) {
        ExpectNanStays(clean, &Problem::q_, nan, nan.token);
        ExpectNanStays(clean, &Problem::k_, nan, nan.token);
        // On tensor cores it is multiplied with the zeros above the diagonal of its tile.
        const int tile = nan.begin + (nan.token - nan.begin) / 16 * 16;
        ExpectNanStays(clean, &Problem::v_, nan, simt ? nan.token : tile);
        ExpectNanStays(clean, &Problem::key_scale_, nan, nan.token);
        if (IsPerToken(kind)) ExpectNanStays(clean, &Problem::decay_, nan, nan.token);
      }
    }
}

// The states between segments and their gradients also respect document starts. Here a document
// starts in the second of three segments, and for no kind of decay at the first token of a group of
// chunks.
TEST(CudaNan, StaysInItsDocumentAcrossSegments) {
  if (kSanitized) GTEST_SKIP() << "adds no access that other tests do not make";
  constexpr int kStart = 560, kLength = 1100;
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
    const ProblemShape shape = {.seq_len = kLength,
                                .heads = 1,
                                .dim_k = 20,
                                .dim_v = 24,
                                .kind = kind,
                                .num_segments = 3,
                                .document_starts = {kStart}};
    Problem clean(shape);
    clean.Forward(/*with_checkpoints=*/true);
    clean.Backward();
    for (Tensor Problem::*const operand : {&Problem::k_, &Problem::decay_})
      for (const int token : {20, kStart + 5, kLength - 20}) {
        SCOPED_TRACE(Concat(shape.Name(), ", token ", token));
        Problem poisoned(shape);
        for (int c = 0; c < (poisoned.*operand).width(); ++c)
          (poisoned.*operand).Set(0, token, 0, c, NAN);
        poisoned.Forward(/*with_checkpoints=*/true);
        poisoned.Backward();
        const bool first = token < kStart;
        const int begin = first ? kStart : 0, end = first ? kLength : kStart;
        const Answer &got = poisoned.answer_, &want = clean.answer_;
        ExpectSameTokens(got.out, want.out, begin, end);
        ExpectSameTokens(got.dq, want.dq, begin, end);
        ExpectSameTokens(got.dk, want.dk, begin, end);
        ExpectSameTokens(got.dv, want.dv, begin, end);
        ExpectSameTokens(got.dlog_decay, want.dlog_decay, begin, end);
        if (first) {
          EXPECT_EQ(poisoned.final_state_, clean.final_state_);
        } else {
          EXPECT_EQ(poisoned.dinitial_state_, clean.dinitial_state_);
        }
        EXPECT_TRUE(std::isnan(got.out.Get(0, first ? kStart - 1 : kLength - 1, 0, 0)));
      }
  }
}

}  // namespace
}  // namespace halflife::kernels::test
