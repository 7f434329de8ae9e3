// The plan of decay attention: routes, blocks, segments, batch tiles and workspaces for each shape
// and device.
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "kernels/decay_attention/cpu/workspace.h"
#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/decay_attention_partition.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

// kHopper uses the warp kernels, kWarpgroups is the same device with WGMMA.
constexpr DeviceLimits kHopper = {true, 132, 232448}, kWarpgroups = {true, 132, 232448, true},
                       kAmpere = {true, 108, 166912}, kAda = {true, 142, 101376};

// Sets the strides of adjacent heads in rows without gaps.
void SetStrides(DecayAttentionArgs& args) {
  const auto set = [&](TensorView& view, int heads, int dim) {
    view.stride_h = dim;
    view.stride_t = int64_t{1} * heads * dim;
    view.stride_b = view.stride_t * args.seq_len;
  };
  set(args.q, args.num_q_heads, args.head_dim_k);
  set(args.k, args.num_k_heads, args.head_dim_k);
  set(args.v, args.num_v_heads, args.head_dim_v);
  set(args.out, args.num_heads, args.head_dim_v);
}

DecayAttentionArgs Shape(int B, int T, int H, int D) {
  DecayAttentionArgs args;
  args.batch = args.num_sequences = B;
  args.seq_len = T;
  args.num_heads = args.num_q_heads = args.num_k_heads = args.num_v_heads = args.num_decay_heads =
      H;
  args.head_dim_k = args.head_dim_v = D;
  args.num_chunks = B * ((T + 63) / 64);
  return args;
}
void SetDType(DecayAttentionArgs& args, DType dtype) {
  for (TensorView* view : {&args.q, &args.k, &args.v, &args.out}) view->dtype = dtype;
}
DecayAttentionArgs HalfShape(int B, int T, int H, int D) {
  DecayAttentionArgs args = Shape(B, T, H, D);
  SetDType(args, DType::kBF16);
  return args;
}

// The expected plan of a shape: the device's schedule and exact sizes. A change of the selection
// rules must change this table.
struct GoldenPlan {
  DecayKind kind;
  int B, T, H, K, V;
  const DeviceLimits& limits;
  int segments, backward_segments;
  int forward_k, forward_v, backward_k, backward_v;  // Per block.
  int checkpoint_every;
  size_t forward_bytes, backward_bytes, checkpoint_bytes;
  NormKind norm = NormKind::kNone;
  int batch_tiles = 1, backward_batch_tiles = 1;
};
constexpr DecayKind kToken = DecayKind::kPerToken, kChannel = DecayKind::kPerTokenChannel;
constexpr GoldenPlan kGoldenPlans[] = {
    // 32 heads are too few for 132 multiprocessors.
    {DecayKind::kNone, 2, 16384, 16, 128, 128, kHopper, 4, 4, 128, 128, 128, 128, 4, 8389120,
     25166336, 68157440},
    {kToken, 2, 16384, 16, 128, 128, kHopper, 4, 4, 128, 128, 128, 128, 4, 8389120, 25166336,
     68157440},
    {kChannel, 2, 16384, 16, 128, 128, kHopper, 4, 4, 128, 128, 128, 128, 2, 335609856, 922812416,
     135266304},
    // 36 idle multiprocessors cost less than a second pass over k and v.
    {kToken, 1, 8192, 96, 128, 128, kHopper, 1, 1, 128, 128, 128, 128, 4, 0, 12582912, 103809024},
    {kChannel, 1, 8192, 96, 128, 128, kHopper, 1, 1, 128, 128, 128, 128, 2, 490733568, 1346371584,
     204472320},
    {kToken, 8, 2048, 32, 64, 64, kHopper, 1, 1, 64, 64, 64, 64, 4, 0, 8388608, 18874368},
    {kChannel, 8, 2048, 32, 64, 64, kHopper, 1, 1, 64, 64, 64, 64, 2, 176160768, 469762048,
     35651584},
    {DecayKind::kPerHead, 1, 131072, 16, 128, 128, kHopper, 8, 8, 128, 128, 128, 128, 4, 8389120,
     25166848, 268959744},
    {kChannel, 1, 131072, 16, 128, 128, kHopper, 8, 8, 128, 128, 128, 128, 2, 1317076992,
     3565223936, 537395200},
    {kToken, 8, 16384, 32, 128, 128, kHopper, 1, 1, 128, 128, 128, 128, 4, 0, 33554432, 545259520},
    {kChannel, 8, 16384, 32, 128, 128, kHopper, 1, 1, 128, 128, 128, 128, 2, 2617245696, 7113539584,
     1082130432},
    // Too short for segments in forward, so V is split in halves.
    {kToken, 1, 1024, 16, 128, 128, kHopper, 1, 2, 128, 64, 128, 128, 4, 0, 6291712, 2621440},
    // D2D
    {DecayKind::kPerHeadChannel, 32, 512, 12, 64, 64, kHopper, 1, 1, 64, 64, 64, 64, 2, 66060288,
     198180864, 15728640},
    // Mamba-2
    {kToken, 1, 8192, 64, 128, 64, kHopper, 2, 2, 128, 64, 128, 64, 4, 4194816, 12583424, 34603008},
    // Slices of V, and of both K and V. The forward has the sums over slices of K in its workspace.
    {DecayKind::kPerHead, 8, 2048, 8, 128, 256, kHopper, 1, 1, 128, 64, 128, 128, 4, 0, 285213184,
     37748736},
    {kChannel, 8, 2048, 4, 128, 256, kHopper, 1, 2, 128, 64, 128, 128, 2, 40894464, 221282304,
     35651584},
    {kToken, 8,   2048, 32,        256,       256,       kHopper,         1, 1, 128, 128,
     128,    128, 4,    536870912, 840957952, 301989888, NormKind::kNone, 2, 4},
    {DecayKind::kPerHead,
     8,
     2048,
     8,
     256,
     512,
     kHopper,
     1,
     1,
     128,
     128,
     128,
     128,
     4,
     536870912,
     838862848,
     150994944,
     NormKind::kNone,
     1,
     2},
    // 99 KiB of shared memory: slices that other devices do not need.
    {kToken, 8,  2048, 32,  128, 128, kAda,      1,        1,
     128,    64, 64,   128, 4,   0,   287309824, 75497472, NormKind::kNone,
     1,      2},
    {kChannel, 8,   2048, 32,  128, 128,       kAda,      1,         1,
     128,      128, 64,   128, 2,   327155712, 754974720, 142606336, NormKind::kNone,
     1,        2},
    {kChannel, 2, 16384, 16, 128, 128, kAmpere, 8, 16, 128, 128, 128, 128, 2, 344064000, 1048838144,
     135266304},
    {kToken, 2, 16384, 16, 128, 128, kAmpere, 8, 16, 128, 128, 128, 128, 4, 16778240, 100665344,
     68157440},
    // The normalizer. Checkpoints have two terms. The backward has centred values and a slice of
    // sums over keys. The forward with several slices of K has their sums.
    {DecayKind::kPerHeadChannel, 32, 512, 12, 64, 64, kHopper, 1, 1, 64, 64, 64, 64, 2, 66060288,
     436666624, 31948800, NormKind::kSumOfKeys},
    {kToken, 8, 2048, 32, 128, 128, kHopper, 1, 1, 128, 128, 128, 128, 4, 0, 1271136512, 152174592,
     NormKind::kSumOfKeys},
    {kToken, 8,   2048, 32,  256, 256,       kHopper,    1,         1,
     128,    128, 128,  128, 4,   404226048, 1198129408, 606339072, NormKind::kSumOfKeys,
     3,      4},
};

TEST(DecayAttentionPlan, DevicesFollowTheShape) {
  float decay = 0;
  for (const GoldenPlan& g : kGoldenPlans) {
    SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(g.kind) << " B " << g.B << " T "
                                    << g.T << " H " << g.H << " K " << g.K << " V " << g.V << " on "
                                    << g.limits.num_sms << " multiprocessors");
    DecayAttentionArgs args = HalfShape(g.B, g.T, g.H, g.K);
    args.head_dim_v = g.V;
    args.decay_kind = g.kind;
    args.norm_kind = g.norm;
    if (g.kind != DecayKind::kNone) args.log_decay.data = &decay;
    const DecayAttentionPlan plan = MakePlan(args, g.limits);
    EXPECT_EQ(plan.chunk_size, 64);
    EXPECT_EQ(plan.num_segments, g.segments);
    EXPECT_EQ(plan.backward_segments, g.backward_segments);
    EXPECT_EQ(plan.forward.k, g.forward_k);
    EXPECT_EQ(plan.forward.v, g.forward_v);
    EXPECT_EQ(plan.backward.k, g.backward_k);
    EXPECT_EQ(plan.backward.v, g.backward_v);
    EXPECT_EQ(plan.checkpoint_every, g.checkpoint_every);
    EXPECT_EQ(plan.forward_batch_tiles, g.batch_tiles);
    EXPECT_EQ(plan.backward_batch_tiles, g.backward_batch_tiles);
    EXPECT_EQ(ForwardWorkspaceBytes(args, plan), g.forward_bytes);
    EXPECT_EQ(BackwardWorkspaceBytes(args, plan), g.backward_bytes);
    EXPECT_EQ(CheckpointBytes(args, plan), g.checkpoint_bytes);
  }
}

TEST(DecayAttentionPlan, WhatRunsOnTensorCores) {
  using cuda::Route;
  DecayAttentionArgs args = HalfShape(1, 128, 1, 64);
  for (const DecayKind kind :
       {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel, kToken, kChannel})
    for (const NormKind norm : {NormKind::kNone, NormKind::kSumOfKeys})
      for (const DeviceLimits* device : {&kAda, &kAmpere, &kHopper})
        for (const int dim_k : {1, 64, 128, 192, 256})
          for (const int dim_v : {1, 64, 128, 256, 512}) {
            float decay = 0;
            args.decay_kind = kind;
            args.log_decay.data = kind == DecayKind::kNone ? nullptr : &decay;
            args.norm_kind = norm;
            args.head_dim_k = dim_k;
            args.head_dim_v = dim_v;
            const DecayAttentionPlan plan = MakePlan(args, *device);
            const Route route = IsPerChannel(kind) ? Route::kChannelScan : Route::kTensorCores;
            SCOPED_TRACE(cuda::DescribeRoute(args, plan));
            EXPECT_EQ(cuda::ForwardRoute(args, plan), route);
            EXPECT_EQ(cuda::BackwardRoute(args, plan), route);
            EXPECT_LE(cuda::ForwardSharedBytes(kind, plan.forward, 1), device->shared_memory_bytes);
            EXPECT_LE(cuda::BackwardSharedBytes(kind, plan.backward, 1),
                      device->shared_memory_bytes);
          }
}

TEST(DecayAttentionPlan, WhatRunsTokenByToken) {
  using cuda::Route;
  DecayAttentionArgs args = HalfShape(1, 128, 1, 128);
  const auto expect_simt = [&](const DeviceLimits& device, const char* reason) {
    const DecayAttentionPlan plan = MakePlan(args, device);
    EXPECT_EQ(cuda::BackwardRoute(args, plan), Route::kSimt);
    EXPECT_NE(cuda::DescribeRoute(args, plan).find(reason), std::string::npos)
        << cuda::DescribeRoute(args, plan);
    return cuda::ForwardRoute(args, plan);
  };
  constexpr DeviceLimits kTuring = {true, 68, 64 << 10};  // sm_75
  EXPECT_EQ(expect_simt(kTuring, "as no block fits the shared memory"), Route::kSimt);
  // For decays per channel, the forward's blocks would fit here, the backward's do not.
  constexpr DeviceLimits kSmall = {true, 68, 40 << 10};
  float decay = 0;
  args.log_decay.data = &decay;
  args.decay_kind = DecayKind::kPerTokenChannel;
  EXPECT_EQ(expect_simt(kSmall, "as no block fits the shared memory"), Route::kSimt);
  // fp32 has two terms per operand. With one decay factor per token, its backward needs 129 KiB.
  args.decay_kind = DecayKind::kNone, args.log_decay.data = nullptr;
  SetDType(args, DType::kF32);
  EXPECT_EQ(expect_simt(kAda, "as no block fits the shared memory"), Route::kSimt);
}

// Every head of fp32 runs in blocks of 64 x 64, with mma.sync, on sm_80 and on sm_90.
TEST(DecayAttentionPlan, Fp32RunsOnTensorCores) {
  DecayAttentionArgs args = HalfShape(2, 4096, 4, 64);
  SetDType(args, DType::kF32);
  float decay = 0;
  for (const DecayKind kind :
       {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel, kToken, kChannel})
    for (const DeviceLimits* device : {&kAda, &kAmpere, &kHopper, &kWarpgroups})
      for (const int dim : {1, 64, 128, 256}) {
        if (device == &kAda && !IsPerChannel(kind)) continue;
        args.norm_kind = dim == 128 ? NormKind::kSumOfKeys : NormKind::kNone;
        args.decay_kind = kind;
        args.log_decay.data = kind == DecayKind::kNone ? nullptr : &decay;
        args.head_dim_k = args.head_dim_v = dim;
        const DecayAttentionPlan plan = MakePlan(args, *device);
        SCOPED_TRACE(cuda::DescribeRoute(args, plan));
        EXPECT_NE(cuda::ForwardRoute(args, plan), cuda::Route::kSimt);
        EXPECT_NE(cuda::BackwardRoute(args, plan), cuda::Route::kSimt);
        for (const DecayBlock& block : {plan.forward, plan.backward}) {
          EXPECT_EQ(block.k, 64);
          EXPECT_EQ(block.v, 64);
        }
        EXPECT_FALSE(plan.forward_warpgroups || plan.backward_warpgroups);
        EXPECT_LE(cuda::ForwardSharedBytes(kind, plan.forward, 2), device->shared_memory_bytes);
        EXPECT_LE(cuda::BackwardSharedBytes(kind, plan.backward, 2), device->shared_memory_bytes);
      }
  args.decay_kind = kToken;
  args.head_dim_k = args.head_dim_v = 128;
  args.norm_kind = NormKind::kNone;
  EXPECT_EQ(cuda::DescribeRoute(args, MakePlan(args, kWarpgroups)),
            "K 128, V 128, on tensor cores in three products of bf16: forward in blocks of 64 x "
            "64, 2 x 2 a head; backward in blocks of 64 x 64, 2 x 2 a head");
}

TEST(DecayAttentionPlan, SaysInWhichBlocks) {
  DecayAttentionArgs args = HalfShape(8, 2048, 8, 256);
  args.head_dim_v = 512;
  EXPECT_EQ(cuda::DescribeRoute(args, MakePlan(args, kHopper)),
            "K 256, V 512, on tensor cores: forward in blocks of 128 x 128, 2 x 4 a head; backward "
            "in blocks of 128 x 128, 2 x 4 a head");
}

// For decays per channel, a group of two chunks has eight states, one per tile of 16 tokens.
TEST(DecayAttentionPlan, GroupsOfTheReverseScans) {
  DecayAttentionArgs args = HalfShape(1, 16384, 2, 128);
  float decay = 0;
  args.log_decay.data = &decay;
  args.decay_kind = DecayKind::kPerToken;
  DecayAttentionPlan plan = MakePlan(args, kHopper, {.num_segments = 2});
  EXPECT_EQ(plan.checkpoint_every, 4);
  EXPECT_EQ(CheckpointBytes(args, plan), size_t(256 / 4 + 1) * 2 * 128 * 128 * 2);
  const size_t segments = size_t(2) * 2 * 128 * 128 * 4;
  EXPECT_EQ(BackwardWorkspaceBytes(args, plan), segments + 256 + size_t(2) * 2 * 4 * 128 * 128 * 2);
  args.decay_kind = DecayKind::kPerTokenChannel;
  plan = MakePlan(args, kHopper, {.num_segments = 2});
  EXPECT_EQ(plan.checkpoint_every, 2);
  EXPECT_EQ(CheckpointBytes(args, plan), size_t(256 / 2 + 1) * 2 * 128 * 128 * 2);
  // 2,048 tiles of two heads: two operands, scores, G and its logarithm; x, y and t.
  const size_t tiles = 2048 * (size_t(4 * 16 * 128 + 16 * 48 + 2 * 4 * 128) + 4 * 33 * 128);
  EXPECT_EQ(BackwardWorkspaceBytes(args, plan),
            segments + tiles + size_t(2) * 2 * 128 * 4 + size_t(2) * 2 * 8 * 128 * 128 * 2);
}

// ---- Workspaces on CUDA ----

struct WorkspaceShape {
  DecayKind kind;
  int B, T, H, K, V;
  NormKind norm = NormKind::kNone;
  DType dtype = DType::kBF16;
};
constexpr NormKind kOfKeys = NormKind::kSumOfKeys;
// Heads of public models from 340 million to 7 billion parameters, with long rows and with many
// rows.
constexpr WorkspaceShape kWorkspaceShapes[] = {
    {kChannel, 8, 2048, 4, 128, 256},
    {kChannel, 16, 2048, 4, 256, 512},
    {kChannel, 16, 2048, 5, 256, 512},
    {DecayKind::kPerHead, 8, 2048, 16, 256, 512},
    {kChannel, 64, 4096, 16, 256, 512},
    {kChannel, 64, 4096, 16, 256, 512, kOfKeys},
    {kToken, 64, 4096, 32, 128, 128, kOfKeys},
    {kToken, 1024, 2048, 4, 256, 512},
    {DecayKind::kPerHeadChannel, 512, 512, 12, 64, 64, kOfKeys},
    {kChannel, 8, 16384, 8, 256, 512},
    {kToken, 2, 131072, 8, 256, 512},
    {kToken, 1, 131072, 8, 256, 512},
    {kChannel, 1, 131072, 8, 256, 512, kOfKeys},
    {kToken, 8, 2048, 8, 256, 512, NormKind::kNone, DType::kF32},
    {kChannel, 64, 2048, 16, 256, 512, kOfKeys, DType::kF32},
};
DecayAttentionArgs ArgsOf(const WorkspaceShape& shape) {
  static float decay = 0;
  DecayAttentionArgs args = Shape(shape.B, shape.T, shape.H, shape.K);
  args.head_dim_v = shape.V;
  args.decay_kind = shape.kind;
  args.norm_kind = shape.norm;
  args.log_decay.data = &decay;
  SetDType(args, shape.dtype);
  SetStrides(args);
  return args;
}

// With the warp kernel, 64 blocks of a short sequence are split in halves. With WGMMA they stay
// whole.
TEST(DecayAttentionPlan, ForwardOfShortSequences) {
  const DecayAttentionArgs args = ArgsOf({kToken, 8, 2048, 4, 128, 256});
  const DecayAttentionPlan halves = MakePlan(args, kHopper), whole = MakePlan(args, kWarpgroups);
  EXPECT_EQ(halves.forward.v, 64);
  EXPECT_EQ(whole.forward.v, 128);
  EXPECT_TRUE(whole.forward_warpgroups);
}

// With WGMMA, a multiprocessor has two blocks of 64 x 64, each with all of a head. Blocks of 128 x
// 64, as for Mamba-2, stay with the warp kernel.
TEST(DecayAttentionPlan, ForwardOfHeadsOf64) {
  for (const DecayKind kind : {DecayKind::kPerHead, kToken}) {
    const DecayAttentionArgs args = ArgsOf({kind, 8, 2048, 32, 64, 64});
    const DecayAttentionPlan plan = MakePlan(args, kWarpgroups);
    EXPECT_TRUE(plan.forward_warpgroups);
    EXPECT_EQ(plan.num_segments, 1) << "256 blocks";
    EXPECT_EQ(cuda::ForwardCost(args, plan, kWarpgroups.shared_memory_bytes).blocks_per_sm, 2);
  }
  EXPECT_FALSE(MakePlan(ArgsOf({kToken, 1, 4096, 64, 128, 64}), kWarpgroups).forward_warpgroups);
}

// With WGMMA, a backward keeps S and R of every chunk, unless a single row has too many of them.
TEST(DecayAttentionPlan, BackwardByWarpgroups) {
  float decay = 0;
  DecayAttentionArgs args = HalfShape(2, 16384, 16, 128);
  args.log_decay.data = &decay;
  args.decay_kind = DecayKind::kPerToken;
  SetStrides(args);
  DecayAttentionPlan plan = MakePlan(args, kWarpgroups);
  EXPECT_TRUE(plan.forward_warpgroups && plan.backward_warpgroups);
  EXPECT_EQ(plan.backward_batch_tiles, 1);
  EXPECT_EQ(plan.backward_segments, 1) << "128 blocks of 64 x 64 in each direction";
  constexpr size_t kFactors = (2 * 64 + 4) * 4;
  EXPECT_EQ(BackwardWorkspaceBytes(args, plan), size_t(512 * 16) * (2 * 128 * 128 * 2 + kFactors));
  EXPECT_EQ(cuda::DescribeRoute(args, plan),
            "K 128, V 128, on tensor cores: forward in blocks of 128 x 128 by warpgroups; backward "
            "in blocks of 128 x 128 by warpgroups");
  // For a short row, the scratch memory of a group is larger than the states of its chunks.
  args = ArgsOf({kToken, 1, 64, 1, 128, 128});
  plan = MakePlan(args, kWarpgroups);
  EXPECT_TRUE(plan.backward_warpgroups);
  EXPECT_EQ(BackwardWorkspaceBytes(args, plan), size_t(4) * 128 * 128 * 2);
  args = ArgsOf({kToken, 1, 131072, 8, 256, 512});
  EXPECT_TRUE(MakePlan(args, kWarpgroups).backward_warpgroups)
      << "the sums over slices of V of the other scan need more memory than the states";
  // If heads share q, k and v, their gradients are partial sums in both.
  args.num_q_heads = args.num_k_heads = args.num_v_heads = 1;
  SetStrides(args);
  plan = MakePlan(args, kWarpgroups);
  EXPECT_TRUE(plan.forward_warpgroups);
  EXPECT_FALSE(plan.backward_warpgroups);
  EXPECT_EQ(plan.backward_segments, 2) << "whose states are scanned by warpgroups";
  EXPECT_EQ(BackwardWorkspaceBytes(args, plan),
            BackwardWorkspaceBytes(args, MakePlan(args, kHopper)) + size_t(2048 * 8) * kFactors);
}

// The heads of the recipes gla_340m, gla_1.3b and gla_7b, and those of HGRN2 and RWKV-6.
TEST(DecayAttentionPlan, ByWarpgroupsWithDecaysOfChannels) {
  for (const WorkspaceShape& shape : {WorkspaceShape{kChannel, 8, 2048, 4, 128, 256},
                                      {kChannel, 8, 2048, 8, 128, 256},
                                      {kChannel, 1, 2048, 16, 128, 256},
                                      {kChannel, 8, 2048, 8, 128, 128},
                                      {kChannel, 8, 2048, 32, 64, 64}}) {
    const DecayAttentionArgs args = ArgsOf(shape);
    DecayAttentionPlan plan = MakePlan(args, kWarpgroups);
    EXPECT_TRUE(plan.forward_warpgroups) << shape.K << " x " << shape.V;
    EXPECT_TRUE(plan.backward_warpgroups) << shape.K << " x " << shape.V;
    EXPECT_FALSE(MakePlan(args, kHopper).forward_warpgroups);
    EXPECT_FALSE(MakePlan(args, kHopper).backward_warpgroups);
    // queries, keys and scores of a chunk and head in bf16; G and its log2 in fp32
    const size_t chunk_head = size_t(64) * (2 * shape.K + 64) * 2 + size_t(2) * shape.K * 4;
    plan.num_segments = plan.forward_batch_tiles = 1;
    EXPECT_EQ(ForwardWorkspaceBytes(args, plan),
              size_t(shape.B) * (shape.T / 64) * shape.H * chunk_head);
    // S and R in bf16, or what the mma.sync kernels need, which is more
    plan.backward_segments = plan.backward_batch_tiles = 1;
    EXPECT_GE(BackwardWorkspaceBytes(args, plan), size_t(shape.B) * (shape.T / 64) * shape.H *
                                                      (chunk_head + size_t(4) * shape.K * shape.V));
  }
  EXPECT_EQ(cuda::DescribeRoute(ArgsOf({kChannel, 8, 2048, 4, 128, 256}),
                                MakePlan(ArgsOf({kChannel, 8, 2048, 4, 128, 256}), kWarpgroups)),
            "K 128, V 256, on tensor cores: forward in blocks of 128 x 64, 1 x 4 a head by "
            "warpgroups; backward in blocks of 128 x 128, 1 x 2 a head by warpgroups");
  const DecayAttentionPlan wide = MakePlan(ArgsOf({kChannel, 8, 2048, 4, 256, 512}), kWarpgroups);
  EXPECT_FALSE(wide.forward_warpgroups || wide.backward_warpgroups);
}

// A caller can run both routes in one process. Without WGMMA, the plan is that of a device without
// it.
TEST(DecayAttentionPlan, WarpgroupsCanBeTurnedOff) {
  const DecayAttentionArgs args = ArgsOf({kToken, 2, 16384, 16, 128, 128});
  const DecayAttentionPlan plan = MakePlan(args, kWarpgroups, {.warpgroups = WarpgroupUse::kOff});
  EXPECT_FALSE(plan.forward_warpgroups || plan.backward_warpgroups);
  EXPECT_EQ(plan.num_segments, MakePlan(args, kHopper).num_segments);
  EXPECT_EQ(BackwardWorkspaceBytes(args, plan),
            BackwardWorkspaceBytes(args, MakePlan(args, kHopper)));
  EXPECT_TRUE(MakePlan(args, kWarpgroups, {.warpgroups = WarpgroupUse::kAuto}).backward_warpgroups);
  EXPECT_FALSE(MakePlan(args, kHopper, {.warpgroups = WarpgroupUse::kAuto}).backward_warpgroups);
}

// The limit does not include the states of segments, one for each block of one or two waves.
TEST(DecayAttentionPlan, WorkspacesStayWithinTheirLimit) {
  for (const WorkspaceShape& shape : kWorkspaceShapes)
    for (const DeviceLimits* device : {&kAda, &kAmpere, &kHopper, &kWarpgroups}) {
      const DecayAttentionArgs args = ArgsOf(shape);
      DecayAttentionPlan plan = MakePlan(args, *device);
      SCOPED_TRACE(testing::Message()
                   << "B " << shape.B << " T " << shape.T << " H " << shape.H << " K " << shape.K
                   << " norm " << (shape.norm == kOfKeys) << " in " << plan.backward_batch_tiles
                   << " batch tiles, " << plan.backward_segments << " segments");
      const size_t row = cuda::TensorBytes(args) / static_cast<size_t>(shape.B);
      const auto limit = [&](int batch_tiles) {
        return batch_tiles < shape.B ? cuda::WorkspaceLimit(args) : 7 * row;
      };
      plan.num_segments = plan.backward_segments = 1;
      EXPECT_LE(ForwardWorkspaceBytes(args, plan), limit(plan.forward_batch_tiles));
      EXPECT_LE(BackwardWorkspaceBytes(args, plan), limit(plan.backward_batch_tiles));
    }
}

// A plan does not depend on where documents start. So short documents, each of which starts a
// chunk, can need more than the limit.
TEST(DecayAttentionPlan, ShortDocumentsCanExceedTheLimitOfAWorkspace) {
  DecayAttentionArgs args = ArgsOf({kChannel, 8, 16384, 8, 256, 512});
  const DecayAttentionPlan plan = MakePlan(args, kHopper);
  EXPECT_EQ(args.num_chunks, cuda::NumChunksOfRows(args));
  EXPECT_FALSE(cuda::DocumentsExceedWorkspaceLimit(args, BackwardWorkspaceBytes(args, plan)));
  EXPECT_FALSE(cuda::DocumentsExceedWorkspaceLimit(args, 2 * cuda::WorkspaceLimit(args)));
  args.num_chunks = 8 * 1076;  // 820 documents per row
  const DecayAttentionPlan packed = MakePlan(args, kHopper);
  EXPECT_EQ(packed.forward_batch_tiles, plan.forward_batch_tiles);
  EXPECT_EQ(packed.backward_batch_tiles, plan.backward_batch_tiles);
  EXPECT_TRUE(cuda::DocumentsExceedWorkspaceLimit(args, BackwardWorkspaceBytes(args, packed)));
}

// A batch tile leaves no multiprocessor idle that the whole batch would use, unless the limit
// forces it.
TEST(DecayAttentionPlan, TurnsKeepMultiprocessorsBusy) {
  int tiled = 0;
  for (const WorkspaceShape& shape : kWorkspaceShapes)
    for (const DeviceLimits* device : {&kAda, &kAmpere, &kHopper, &kWarpgroups}) {
      const DecayAttentionArgs args = ArgsOf(shape);
      const DecayAttentionPlan plan = MakePlan(args, *device);
      if (plan.backward_batch_tiles == 1 || plan.backward.k == 0) continue;
      ++tiled;
      const int rows = shape.B / plan.backward_batch_tiles;  // Rows of the smallest tile.
      const int blocks = rows * shape.H * cuda::SlicesOf(args, plan.backward).count();
      DecayAttentionPlan fewer = plan;
      --fewer.backward_batch_tiles;
      if (BackwardWorkspaceBytes(args, fewer) > cuda::WorkspaceLimit(args)) continue;
      EXPECT_GE(blocks * plan.backward_segments, 2 * device->num_sms - device->num_sms / 4)
          << "B " << shape.B << " T " << shape.T << " H " << shape.H;
    }
  EXPECT_GT(tiled, 20);
}

TEST(DecayAttentionPlan, SmallBatchesAndPackedSequencesTakeOneTurn) {
  DecayAttentionArgs args = ArgsOf({kChannel, 4, 2048, 4, 256, 512});
  EXPECT_EQ(MakePlan(args, kHopper).backward_batch_tiles, 1) << "fewer blocks than two rounds";
  args = ArgsOf({kToken, 1, 1 << 20, 4, 256, 512});
  args.num_sequences = 512;
  EXPECT_EQ(MakePlan(args, kHopper).backward_batch_tiles, 1);
}

TEST(DecayAttentionPlan, BatchTilesCanBeRequested) {
  const DecayAttentionArgs args = ArgsOf({kToken, 5, 700, 2, 128, 128});
  for (const DeviceLimits* device : {&kHopper, &kWarpgroups}) {
    EXPECT_EQ(MakePlan(args, *device).backward_batch_tiles, 1);
    const DecayAttentionPlan plan = MakePlan(args, *device, {.batch_tiles = 3});
    EXPECT_EQ(plan.forward_batch_tiles, 3);
    EXPECT_EQ(plan.backward_batch_tiles, 3);
    EXPECT_HL_ERROR(MakePlan(args, *device, {.batch_tiles = 6}), ExitCode::kUsage,
                    "in 6 batch tiles: a batch of 5 with 5 sequences has 1 to 5 of them");
  }
}

// Calculated by hand: 128 rows of 4 heads, with 4 x 2 slices of fp32 sums, in batch tiles of 8
// rows, 256 blocks.
TEST(DecayAttentionPlan, WorkspaceOfATurn) {
  const DecayAttentionArgs args = ArgsOf({kToken, 128, 2048, 4, 256, 512});
  const DecayAttentionPlan plan = MakePlan(args, kHopper);
  EXPECT_EQ(plan.backward_batch_tiles, 16);
  const size_t tokens = size_t{8} * 2048 * 4;
  const size_t sums = tokens * (2 * 4 * 256 + 2 * 512 + 8) * 4;  // dq and dk, dv, dlog_decay.
  EXPECT_EQ(BackwardWorkspaceBytes(args, plan), sums + size_t{256} * 4 * 128 * 128 * 2);
}

// Summaries have no partial outputs or gradients: only states between segments, and with the
// normalizer one number per token and head.
TEST(DecayAttentionPlan, SummariesTakeLittle) {
  DecayAttentionArgs args = HalfShape(1, 16384, 2, 256);
  DecayAttentionPlan plan = MakePlan(args, kHopper, {.num_segments = 1});
  EXPECT_EQ(SummaryWorkspaceBytes(args, plan), 0u);
  EXPECT_EQ(ReverseSummaryWorkspaceBytes(args, plan), 0u);
  args.norm_kind = NormKind::kSumOfKeys;
  plan = MakePlan(args, kHopper, {.num_segments = 2});
  const size_t segments = size_t(2) * 2 * 256 * 256 * 4 + 256, one = 256;
  EXPECT_EQ(SummaryWorkspaceBytes(args, plan), segments + one);
  EXPECT_EQ(ReverseSummaryWorkspaceBytes(args, plan), segments + one + size_t(16384) * 2 * 4);
  SetDType(args, DType::kF32);
  plan = MakePlan(args, {true, 68, 64 << 10});  // token by token
  EXPECT_EQ(SummaryWorkspaceBytes(args, plan), 0u);
  EXPECT_EQ(ReverseSummaryWorkspaceBytes(args, plan), size_t(16384) * 2 * 4);
}

TEST(DecayAttentionPlan, TheHostSegmentsLongSequencesOfFewHeads) {
  EXPECT_EQ(MakePlan(Shape(2, 4096, 8, 64), {}).num_segments, 1);
  EXPECT_EQ(MakePlan(Shape(1, 4096, 1, 64), {}).num_segments, 4);
  EXPECT_EQ(MakePlan(Shape(1, 65536, 1, 64), {}).num_segments, 4);
  EXPECT_EQ(MakePlan(Shape(1, 65536, 4, 64), {}).num_segments, 1);
  EXPECT_EQ(MakePlan(Shape(1, 1024, 1, 64), {}).num_segments, 1);
  EXPECT_EQ(MakePlan(Shape(1, 4096, 1, 64), {}, {.num_segments = 3}).num_segments, 3);
}

TEST(DecayAttentionPlan, TheHostGroups256TokensOr8Chunks) {
  for (const auto& [chunk_size, every] : {std::pair{0, 8}, std::pair{1, 8}, std::pair{32, 8},
                                          std::pair{64, 4}, std::pair{100, 2}, std::pair{256, 1}}) {
    const DecayAttentionPlan plan = MakePlan(Shape(1, 4096, 1, 64), {}, {.chunk_size = chunk_size});
    EXPECT_EQ(plan.chunk_size, chunk_size == 0 ? 32 : chunk_size);
    EXPECT_EQ(plan.checkpoint_every, every) << "chunks of " << chunk_size;
  }
}

// Blocks have 8 MiB of q, k, v and out, in whole groups between checkpoints, and at least one
// group.
TEST(DecayAttentionPlan, TheHostScansLongRowsInBlocks) {
  const auto tokens = [](const DecayAttentionArgs& args) {
    const DecayAttentionPlan plan = MakePlan(args, {});
    EXPECT_EQ(plan.block_chunks % plan.checkpoint_every, 0);
    return plan.block_chunks * plan.chunk_size;
  };
  EXPECT_EQ(tokens(Shape(1, 16384, 8, 64)), 1024);
  EXPECT_EQ(tokens(Shape(1, 16384, 3, 64)), 2560);  // 2,730 in groups of 256.
  EXPECT_EQ(tokens(Shape(1, 16384, 64, 256)), 256);
}

TEST(DecayAttentionPlan, BytesFollowTheParts) {
  DecayAttentionArgs args = Shape(2, 300, 4, 64);
  args.num_chunks = 2 * 10;  // Chunks of 32 tokens.
  DecayAttentionPlan plan = MakePlan(args, {});
  EXPECT_EQ(plan.chunk_size, 32);
  EXPECT_EQ(ForwardWorkspaceBytes(args, plan), 0u);
  EXPECT_EQ(BackwardWorkspaceBytes(args, plan), 0u);
  EXPECT_EQ(CheckpointBytes(args, plan), (20 / 8 + 2) * 4 * 64 * 64 * 4u);
  plan.num_segments = 2;
  EXPECT_EQ(ForwardWorkspaceBytes(args, plan), 2 * 4 * 2 * (64 * 64 + 1) * 4u);
  args.num_k_heads = 2;
  EXPECT_EQ(BackwardWorkspaceBytes(args, plan),
            2 * 4 * 2 * (64 * 64 + 1) * 4u + 2 * 300 * 4 * 64 * 4u);
}

TEST(DecayAttentionPlan, CheckpointsOfSequencesDoNotMeet) {
  // Lengths in chunks: each sequence's slots end before those of the next sequence, and the last
  // one ends within the count.
  for (const int every : {1, 3, 4}) {
    int64_t free_slot = 0;
    int first = 0, n = 0;
    for (const int length : {0, 1, 4, 5, 0, 3, 8, 1}) {
      for (int chunk = 0; chunk < length; ++chunk) {
        const int64_t slot = CheckpointSlot(n, first, first + chunk, every);
        if (chunk % every == 0) {
          EXPECT_GE(slot, free_slot);
          free_slot = slot + 1;
        }
      }
      first += length;
      ++n;
    }
    DecayAttentionArgs args = Shape(n, 64, 1, 16);
    args.num_chunks = first;
    DecayAttentionPlan plan;
    plan.checkpoint_every = every;
    EXPECT_LE(free_slot, cpu::MakeCheckpointLayout(args, plan).num_slots);
  }
}

TEST(DecayAttentionPlan, NamesEveryProblemOfAShape) {
  DecayAttentionArgs args = Shape(1, 64, 6, 64);
  args.num_k_heads = 4;
  args.head_dim_v = 513;
  args.decay_kind = DecayKind::kPerToken;
  args.k.dtype = DType::kBF16;
  try {
    MakePlan(args, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    for (const char* part :
         {"num_k_heads 4 does not divide num_heads 6", "head_dim_v 513 is outside 1 .. 512",
          "log_decay is missing", "one dtype for all"})
      EXPECT_NE(error.message().find(part), std::string::npos) << part << "\n" << error.message();
  }
}

TEST(DecayAttentionPlan, NamesStridesThatDoNotFit) {
  DecayAttentionArgs args = Shape(2, 64, 6, 64);
  float data = 0;
  for (TensorView* view : {&args.q, &args.k, &args.v, &args.out})
    *view = {&data, 64 * 6 * 64, 6 * 64, 64, DType::kF32};
  EXPECT_NO_THROW(MakePlan(args, {}));
  args.q.stride_t = -1;
  args.out.stride_h = 63;
  EXPECT_HL_ERROR(MakePlan(args, {}), ExitCode::kUsage, "q has a negative stride",
                  "out: heads 63 elements apart overlap, each has 64");
}

// With a single head, the stride between heads has no meaning. PyTorch may set it to any value.
TEST(DecayAttentionPlan, OneHeadMayHaveAnyStride) {
  DecayAttentionArgs args = Shape(2, 64, 1, 64);
  float data = 0;
  for (TensorView* view : {&args.q, &args.k, &args.v, &args.out})
    *view = {&data, 64 * 64, 64, /*stride_h=*/1, DType::kF32};
  EXPECT_NO_THROW(MakePlan(args, {}));
}

}  // namespace
}  // namespace halflife::kernels
