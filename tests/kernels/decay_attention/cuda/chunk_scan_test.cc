// The tensor-core scans of decay attention equal the oracle, in the emulator.
#include <gmock/gmock.h>

#include <cstdlib>
#include <functional>

#include "core/error.h"
#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

TEST(CudaChunkScan, ForwardOfAnyLength) {
  for (const int seq_len : Lengths()) ExpectForward({.seq_len = seq_len, .heads = 1});
}

TEST(CudaChunkScan, GradientsOfAnyLength) {
  for (const int seq_len : Lengths()) {
    if (kSlow && seq_len != 65) continue;
    // The terms of one decay's gradient may cancel by chance, so use several heads.
    ExpectGradients({.seq_len = seq_len, .heads = seq_len == 1 ? 8 : 1});
  }
}

TEST(CudaChunkScan, GroupsOfChunksMeetAtTheirCheckpoints) {
  if (kSlow) GTEST_SKIP() << "the sizes are those of other tests";
  for (const int seq_len : {256, 257, 580}) ExpectGradients({.seq_len = seq_len, .heads = 1});
}

TEST(CudaChunkScan, Kinds) {
  for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead})
    ExpectGradients({.seq_len = kSlow ? 65 : 200, .heads = 1, .kind = kind});
}

TEST(CudaChunkScan, EveryInstanceWithPaddedHeads) {
  for (const int dim_k : {24, 60, 100, 128})
    for (const int dim_v : {40, 64, 100}) {
      if (kSlow && (dim_k != 100 || dim_v == 64)) continue;
      ExpectGradients({.seq_len = kSlow ? 20 : 80, .heads = 1, .dim_k = dim_k, .dim_v = dim_v});
    }
}

// The largest tiles have one stage on sm_80, where two do not fit.
TEST(CudaChunkScan, OneStageWhereSharedMemoryIsShort) {
  ASSERT_EQ(setenv("HL_EMU_SHARED_BYTES", "166912", 1), 0);
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kNone})
    ExpectGradients(
        {.seq_len = kSlow ? 70 : 300, .heads = 1, .dim_k = 128, .dim_v = 128, .kind = kind});
  unsetenv("HL_EMU_SHARED_BYTES");
}

// A plan uses blocks of 128 columns if there are enough heads for all multiprocessors.
TEST(CudaChunkScan, BlocksOf128ColumnsOfV) {
  for (const HeadDims& dims : kWideHeads) {
    if (kSlow && dims.v != 100) continue;
    ExpectGradients(
        {.seq_len = kSlow ? 20 : 80, .heads = 1, .dim_k = dims.k, .dim_v = dims.v, .block_v = 128});
  }
}

TEST(CudaChunkScan, SlicesInBlocksOf128ColumnsOfV) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const int dim_k : {64, 128})
    ExpectForward({.seq_len = 70, .heads = 1, .dim_k = dim_k, .dim_v = 200, .block_v = 128});
}

TEST(CudaChunkScan, SlicesOfV) {
  for (const int dim_v : {65, 128, 200}) {
    if (kSlow && dim_v != 65) continue;
    ExpectForward({.seq_len = 70, .heads = 1, .dim_v = dim_v, .block_v = 64});
  }
}

TEST(CudaChunkScan, AdversarialDecays) {
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken})
    for (const Strength strength : kAdversarial) {
      if (kSlow && (kind != DecayKind::kPerToken || strength != Strength::kResets)) continue;
      ExpectGradients({.seq_len = kSlow ? 70 : 150,
                       .heads = DecayHeads(kind),
                       .kind = kind,
                       .strength = strength});
    }
}

TEST(CudaChunkScan, GrowthUpToSixtyAChunk) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken})
    ExpectGradients({.seq_len = 64, .heads = 1, .kind = kind, .strength = Strength::kGrowth});
}

TEST(CudaChunkScan, InfiniteDecayHasNoGradient) {
  Problem problem({.seq_len = 70, .heads = 1, .strength = Strength::kResets});
  problem.Forward(true);
  problem.Backward();
  for (int t = 0; t < 70; ++t) {
    if (!std::isinf(problem.decay_.Get(0, t, 0, 0))) continue;
    EXPECT_EQ(problem.answer_.dlog_decay.Get(0, t, 0, 0), 0) << t;
  }
}

// Sums for gradients that are not requested are not computed.
TEST(CudaChunkScan, OtherGradientsWithoutThoseOfDecays) {
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken,
                               DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel}) {
    const ProblemShape shape = {.seq_len = kSlow ? 70 : 300, .heads = 1, .kind = kind};
    SCOPED_TRACE(shape.Name());
    Problem all(shape), some(shape);
    for (Problem* problem : {&all, &some}) problem->Forward(/*with_checkpoints=*/true);
    all.Backward();
    DecayAttentionGradArgs grads = some.GradArgs();
    grads.dlog_decay = {};
    some.Backward(grads);
    const Answer &want = all.answer_, &got = some.answer_;
    for (const auto& [a, b] :
         {std::pair{&want.dq, &got.dq}, std::pair{&want.dk, &got.dk}, std::pair{&want.dv, &got.dv}})
      ExpectSameTokens(*a, *b, 0, shape.seq_len);
    EXPECT_EQ(all.dinitial_state_, some.dinitial_state_);
  }
}

TEST(CudaChunkScan, SharedHeads) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ProblemShape shape = {.batch = 2, .seq_len = 70, .heads = 4};
  shape.q_heads = 2;
  shape.k_heads = 1;
  shape.v_heads = 2;
  shape.decay_heads = 1;
  shape.key_scale = true;
  ExpectGradients(shape);
  shape.odd_strides = true;
  shape.kind = DecayKind::kPerHead;
  ExpectGradients(shape);
}

TEST(CudaChunkScan, RowsThatNoVectorLoadTakes) {
  ExpectGradients({.seq_len = 70, .heads = 1, .dim_k = 37, .dim_v = 51, .odd_strides = true});
}

TEST(CudaChunkScan, Documents) {
  ExpectGradients(
      {.batch = 1, .seq_len = kSlow ? 80 : 300, .heads = 1, .document_starts = {10, 64}});
}

TEST(CudaChunkScan, DocumentsOfTwoRows) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ExpectGradients(
      {.batch = 2, .seq_len = 300, .heads = 1, .document_starts = {0, 100, 256, 300, 301, 500}});
}

TEST(CudaChunkScan, PackedSequencesSomeOfThemEmpty) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ExpectGradients({.seq_len = 200, .heads = 1, .cu_seqlens = {0, 0, 63, 63, 64, 128, 193, 200}});
}

TEST(CudaChunkScan, SplitAndCarryIsTheWhole) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  const ProblemShape shape = {.seq_len = 150, .heads = 1};
  Problem whole(shape), parts(shape);
  whole.Forward();
  std::vector<float> carried(parts.final_state_.size());
  for (const auto& [begin, end] : {std::pair{0, 70}, std::pair{70, 150}}) {
    DecayAttentionArgs args = parts.Args();
    const ChunkTable table = MakeChunkTable({.batch = 1, .seq_len = end - begin, .chunk_size = 64});
    args.seq_len = end - begin;
    args.chunks = table.chunks.data();
    args.num_chunks = static_cast<int>(table.chunks.size());
    args.sequence_begin = table.sequence_begin.data();
    for (TensorView* view : {&args.q, &args.k, &args.v, &args.out, &args.log_decay})
      view->data = static_cast<char*>(view->data) + begin * view->stride_t * SizeOf(view->dtype);
    if (begin > 0) args.initial_state = carried.data();
    cuda::Forward(args, MakePlan(args, {.is_cuda = true}), nullptr);
    carried = parts.final_state_;
  }
  ExpectClose(shape, parts.Compare(false));
}

TEST(CudaChunkScan, EarlierOutputsDoNotKnowOfLaterTokens) {
  const ProblemShape shape = {.seq_len = 80, .heads = 1};
  Problem before(shape), after(shape);
  before.Forward();
  constexpr int kToken = 70;
  for (int c = 0; c < shape.dim_k; ++c) {
    after.q_.Set(0, kToken, 0, c, 3);
    after.k_.Set(0, kToken, 0, c, -3);
    after.v_.Set(0, kToken, 0, c, 5);
  }
  after.decay_.Set(0, kToken, 0, 0, -2);
  after.Forward();
  for (int t = 0; t < kToken; ++t)
    for (int c = 0; c < shape.dim_v; ++c)
      ASSERT_EQ(before.answer_.out.Get(0, t, 0, c), after.answer_.out.Get(0, t, 0, c)) << t;
  EXPECT_NE(before.answer_.out.Get(0, kToken, 0, 0), after.answer_.out.Get(0, kToken, 0, 0));
}

TEST(CudaChunkScan, GradientsDoNotKnowOfEarlierOutputs) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken})
    for (const int token : {3, 63, 64})
      ExpectGradientsKnowLaterOutputsOnly({.seq_len = 70, .heads = 1, .kind = kind}, token);
}

TEST(CudaChunkScan, TwoRunsAgreeInEveryBit) {
  ProblemShape shape = {.seq_len = 70, .heads = 2};
  shape.k_heads = 1;
  ExpectTwoRunsAgreeInEveryBit(shape);
}

std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(CudaChunkScan, RefusalsSayWhatWouldWork) {
  Problem problem({.seq_len = 10, .heads = 1});
  problem.Forward(true);
  DecayAttentionPlan plan = problem.Plan();
  plan.chunk_size = 32;
  EXPECT_THAT(MessageOf([&] { cuda::Forward(problem.Args(), plan, nullptr); }),
              testing::HasSubstr("chunks of 32 tokens are not supported. Use 64 to 64 on CUDA."));
  DecayAttentionGradArgs grads = problem.GradArgs();
  EXPECT_THAT(MessageOf([&] { cuda::Backward(grads, problem.Plan(), nullptr); }),
              testing::HasSubstr("bytes of workspace, got none"));
  grads.forward.checkpoints = nullptr;
  grads.forward.workspace = problem.final_state_.data();  // Checked but not used.
  EXPECT_THAT(MessageOf([&] { cuda::Backward(grads, problem.Plan(), nullptr); }),
              testing::HasSubstr("left no checkpoints"));
  DecayAttentionArgs wide = problem.Args();
  wide.q.dtype = DType::kF64;
  EXPECT_THAT(MessageOf([&] { cuda::Forward(wide, problem.Plan(), nullptr); }),
              testing::HasSubstr("Use bf16 or fp32 for all."));
  wide = problem.Args();
  wide.head_dim_k = 300;
  EXPECT_THAT(MessageOf([&] { cuda::Forward(wide, problem.Plan(), nullptr); }),
              testing::HasSubstr("Use K of 1 to 256 and V of 1 to 512."));
}

}  // namespace
}  // namespace halflife::kernels::test
