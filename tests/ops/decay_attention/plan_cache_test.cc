// A plan from the cache is the one that MakePlan() makes, and layers that differ only in addresses
// share it.
#include "ops/decay_attention/plan_cache.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using kernels::DecayAttentionPlan;
using kernels::DecayKind;
using Question = DecayPlanCache::Question;

alignas(256) char memory[1024];

// A layer of 4 heads on an H100.
Question Layer() {
  Question question;
  kernels::DecayAttentionArgs& args = question.args;
  args.batch = args.num_sequences = 8;
  args.seq_len = 2048;
  args.num_chunks = 8 * 32;
  args.num_heads = args.num_q_heads = args.num_k_heads = args.num_v_heads = args.num_decay_heads =
      4;
  args.head_dim_k = 128, args.head_dim_v = 256;
  args.decay_kind = DecayKind::kPerToken;
  const auto rows = [](int dim) {
    return kernels::TensorView{.data = memory,
                               .stride_b = int64_t{2048} * 4 * dim,
                               .stride_t = int64_t{4} * dim,
                               .stride_h = dim,
                               .dtype = DType::kBF16};
  };
  args.q = args.k = rows(128);
  args.v = args.out = rows(256);
  args.log_decay = {.data = memory, .stride_b = 8192, .stride_t = 4, .stride_h = 1};
  question.limits = {
      .is_cuda = true, .num_sms = 132, .shared_memory_bytes = 227 << 10, .warpgroups = true};
  question.request.chunk_size = 64;
  return question;
}

// Returns true if the plan for this question was not in the cache.
bool IsNew(DecayPlanCache& cache, const Question& question) {
  bool is_new = false;
  cache.Find(question, [&](const DecayAttentionPlan&) { is_new = true; });
  return is_new;
}

TEST(DecayPlanCache, LayersThatDifferInAddressesShareAPlan) {
  DecayPlanCache cache;
  Question question = Layer();
  EXPECT_TRUE(IsNew(cache, question));
  EXPECT_FALSE(IsNew(cache, question));
  question.args.q.data = memory + 512;
  question.args.log_decay.data = memory + 256;
  EXPECT_FALSE(IsNew(cache, question));
}

TEST(DecayPlanCache, WhateverAPlanDependsOnMakesANewOne) {
  const std::vector<std::function<void(Question&)>> changes = {
      [](Question& x) { x.args.q.data = memory + 8; },  // TMA needs a multiple of 16
      [](Question& x) { x.args.k.stride_h = 136; },
      [](Question& x) { x.args.key_scale.data = memory; },
      [](Question& x) { x.args.initial_state = memory; },
      [](Question& x) { x.args.batch = x.args.num_sequences = 4; },
      [](Question& x) { x.args.seq_len = 1024; },
      [](Question& x) { x.args.num_chunks += 3; },
      [](Question& x) { x.args.head_dim_v = 128; },
      [](Question& x) { x.args.norm_kind = kernels::NormKind::kSumOfKeys; },
      [](Question& x) { x.limits.num_sms = 114; },
      [](Question& x) { x.limits.warpgroups = false; },
      [](Question& x) { x.request.num_segments = 2; },
      [](Question& x) { x.request.warpgroups = kernels::WarpgroupUse::kOff; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    DecayPlanCache cache;
    Question question = Layer();
    EXPECT_TRUE(IsNew(cache, question));
    changes[i](question);
    EXPECT_TRUE(IsNew(cache, question)) << "change " << i;
    EXPECT_FALSE(IsNew(cache, Layer())) << "change " << i << " replaced the first plan";
  }
}

// More different questions than the cache holds.
TEST(DecayPlanCache, EveryPlanIsThatOfItsQuestion) {
  DecayPlanCache cache;
  std::mt19937 random(1);
  const auto pick = [&](std::initializer_list<int> values) {
    return values.begin()[random() % values.size()];
  };
  for (int i = 0; i < 500; ++i) {
    Question question = Layer();
    question.args.batch = question.args.num_sequences = pick({1, 2, 8});
    question.args.seq_len = pick({64, 2048, 16384});
    question.args.num_chunks = question.args.batch * question.args.seq_len / 64;
    question.args.decay_kind = random() % 2 == 0 ? DecayKind::kPerToken : DecayKind::kPerHead;
    question.limits.warpgroups = random() % 2 == 0;
    const DecayAttentionPlan want =
        kernels::MakePlan(question.args, question.limits, question.request);
    const DecayAttentionPlan got = cache.Find(question, [](const DecayAttentionPlan&) {});
    ASSERT_EQ(got.num_segments, want.num_segments);
    ASSERT_EQ(got.backward_segments, want.backward_segments);
    ASSERT_EQ(got.forward.v, want.forward.v);
    ASSERT_EQ(got.forward_warpgroups, want.forward_warpgroups);
    ASSERT_EQ(got.backward_warpgroups, want.backward_warpgroups);
    ASSERT_EQ(got.forward_batch_tiles, want.forward_batch_tiles);
  }
}

TEST(DecayPlanCache, AShapeWithoutAPlanIsRefusedEachTime) {
  DecayPlanCache cache;
  Question question = Layer();
  question.args.num_k_heads = 3;
  for (int i = 0; i < 2; ++i)
    EXPECT_HL_ERROR(IsNew(cache, question), ExitCode::kUsage, "num_k_heads 3 does not divide");
  EXPECT_TRUE(IsNew(cache, Layer()));
  EXPECT_HL_ERROR(IsNew(cache, Question()), ExitCode::kUsage, "num_heads is 0");
}

}  // namespace
}  // namespace halflife::ops
