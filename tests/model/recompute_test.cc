// Training with recomputation gives the same bits as training that stores all activations: the loss
// and every gradient, for every mixer and block, with dropout and documents, on one rank and on
// several, without more communication. Its memory is the planned one.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dist/local_communicator.h"
#include "model/language_model.h"
#include "model/mixer_forms.h"
#include "model/model_cost.h"
#include "model/sequence_parallel.h"
#include "ops/gradient_check.h"
#include "ops/rows/dropout.h"
#include "support/peak_bytes.h"

namespace halflife::model {
namespace {

using dist::Communicator;
using dist::LocalWorld;
using ops::SegmentGroup;
using test::Uniform;

constexpr int64_t kBatch = 2, kSeqLen = 80;
const std::vector<uint64_t> kSamples = {7, 11};

const std::map<std::string, Recompute> kWays = {{"mixer", Recompute::kMixer},
                                                {"block", Recompute::kBlock}};

ModelConfig Of(const MixerForm& form) {
  ModelConfig config = {.vocab_size = 37, .model_dim = 32, .num_layers = 3};
  config.initializer_range = 0.2;
  config.dropout = 0.1;
  config.mixer = form;
  config.positions = form.positions;
  config.objective = ObjectiveConfig("labelled");  // Includes encoders.
  config.channel_mixer = ChannelMixerConfig("swiglu", {{"width", int64_t{48}}});
  return config;
}

struct Outcome {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;  // One per parameter; undefined: none.
};

at::Tensor Tokens(uint64_t seed, int64_t batch = kBatch, int64_t seq_len = kSeqLen) {
  return (Uniform({batch, seq_len}, seed) * 37.0).to(at::kLong);
}

void Bind(LanguageModel& model, at::ScalarType dtype) {
  model.BindOwnMemory(3, /*requires_grad=*/false);
  for (int i = 0; i < model.parameters().size(); ++i)
    model.parameters().Bind(i, model.parameters().tensor(i).to(dtype).requires_grad_(true));
}

Outcome Train(const ModelConfig& config, Recompute recompute, const SequenceSlice& slice,
              const at::Tensor& tokens, const at::Tensor& targets,
              at::ScalarType dtype = at::kFloat) {
  LanguageModel model(config);
  Bind(model, dtype);
  const LossSums sums = model.Loss(tokens, targets,
                                   {.slice = &slice,
                                    .training = true,
                                    .recompute = recompute,
                                    .seed = 5,
                                    .samples = ops::SampleNumbers(kSamples, at::kCPU)});
  sums.objective.backward();
  Outcome outcome = {.loss = sums.loss.detach(), .gradients = {}};
  for (int i = 0; i < model.parameters().size(); ++i)
    outcome.gradients.push_back(model.parameters().tensor(i).grad());
  return outcome;
}

void ExpectSameBits(const Outcome& got, const Outcome& want) {
  EXPECT_TRUE(got.loss.equal(want.loss));
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  double sum = 0;
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    ASSERT_EQ(got.gradients[i].defined(), want.gradients[i].defined()) << i;
    if (!want.gradients[i].defined()) continue;
    EXPECT_TRUE(got.gradients[i].equal(want.gradients[i])) << "parameter " << i;
    sum += want.gradients[i].abs().sum().item<double>();
  }
  EXPECT_GT(sum, 0);
}

SequenceSlice Rows(bool packed) {
  return packed ? SequenceSlice::Packed(kBatch, kSeqLen, {{0, 13, 64, 80, 81, 160}}, at::kCPU)
                : SequenceSlice::Contiguous(kBatch, kSeqLen, 0, at::kCPU);
}

class RecomputedMixer : public testing::TestWithParam<MixerForm> {};

TEST_P(RecomputedMixer, GivesTheSameBits) {
  const ModelConfig config = Of(GetParam());
  const bool packs = LanguageModel(config).LayerOfOneDocument().empty();
  for (const bool packed : {false, true}) {
    if (packed && !packs) continue;
    const SequenceSlice slice = Rows(packed);
    const Outcome kept = Train(config, Recompute::kNone, slice, Tokens(1), Tokens(2));
    for (const auto& [name, way] : kWays) {
      SCOPED_TRACE(name + (packed ? ", packed" : ""));
      ExpectSameBits(Train(config, way, slice, Tokens(1), Tokens(2)), kept);
    }
  }
}

// Blocks whose residual uses the mixer's input, which is read several times here.
TEST(Recomputed, MixersThatReadTheirInputTwice) {
  for (const auto& [mixer, options] :
       {std::pair<const char*, std::vector<Assignment>>{"base_conv", {}},
        {"fastformer", {{"preset", std::string("fastformer_seed")}}}})
    for (const BlockConfig& block :
         {BlockConfig("post_norm"),
          BlockConfig("pre_norm", {{"mixer_residual_post_norm", true}})}) {
      ModelConfig config = {.vocab_size = 37, .model_dim = 24, .num_layers = 2};
      config.mixer = MixerConfig(mixer, options);
      config.block = block;
      const SequenceSlice slice = Rows(/*packed=*/false);
      const Outcome kept = Train(config, Recompute::kNone, slice, Tokens(1), Tokens(2));
      for (const auto& [name, way] : kWays) {
        SCOPED_TRACE(name + " of " + mixer + " in " + block.name());
        ExpectSameBits(Train(config, way, slice, Tokens(1), Tokens(2)), kept);
      }
    }
}

// Counts the exchanges between ranks, which are compared too.
class CountingGroup final : public SegmentGroup {
 public:
  CountingGroup(std::shared_ptr<SegmentGroup> group, int64_t& count)
      : group_(std::move(group)), count_(count) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void Settle() override { group_->Settle(); }
  double TakeWaitSeconds() override { return group_->TakeWaitSeconds(); }
  at::Tensor AllGather(const at::Tensor& x, const char* what) override {
    ++count_;
    return group_->AllGather(x, what);
  }
  at::Tensor ReduceScatter(const at::Tensor& x, const char* what) override {
    ++count_;
    return group_->ReduceScatter(x, what);
  }
  std::unique_ptr<Transfer> Shift(const at::Tensor& send, const at::Tensor& received,
                                  Direction direction, const char* what) override {
    ++count_;
    return group_->Shift(send, received, direction, what);
  }

 private:
  std::shared_ptr<SegmentGroup> group_;
  int64_t& count_;
};

TEST_P(RecomputedMixer, GivesTheSameBitsWhereRanksShareRows) {
  const ModelConfig config = Of(GetParam());
  if (!LanguageModel(config).LayerOfWholeRows().empty()) GTEST_SKIP() << "mixes whole rows";
  constexpr int kRanks = 3;
  const auto on_ranks = [&](ops::StateStrategy strategy, Recompute way) {
    std::vector<std::pair<Outcome, int64_t>> of_ranks(kRanks);
    LocalWorld::Run(kRanks, [&](Communicator& comm) {
      auto& [outcome, count] = of_ranks[static_cast<size_t>(comm.rank())];
      const SequenceParallel parallel = {
          .group = std::make_shared<CountingGroup>(MakeSegmentGroup(comm), count),
          .strategy = strategy,
          .lengths = {37, 1, 42}};
      outcome = Train(config, way, parallel.SliceOf(Rows(/*packed=*/true)),
                      parallel.TokensOf(Tokens(1)), parallel.TokensOf(Tokens(2)));
      parallel.group->Settle();
    });
    return of_ranks;
  };
  for (const auto strategy : {ops::StateStrategy::kGather, ops::StateStrategy::kScan}) {
    const auto kept = on_ranks(strategy, Recompute::kNone);
    for (const auto& [name, way] : kWays) {
      const auto again = on_ranks(strategy, way);
      for (size_t rank = 0; rank < kRanks; ++rank) {
        SCOPED_TRACE(name + " on rank " + std::to_string(rank));
        ExpectSameBits(again[rank].first, kept[rank].first);
        EXPECT_EQ(again[rank].second, kept[rank].second) << "exchanges";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RecomputedMixer, testing::ValuesIn(test::AllMixerForms()),
                         [](const auto& test) { return test::TestNameOf(test.param); });

TEST(Recompute, GivesTheSameBitsInEveryBlockAndInBf16) {
  for (const std::string& block : NamesOf(kBlocks)) {
    ModelConfig config = Of({MixerConfig("gla", {{"num_heads", int64_t{2}}}), {}});
    config.block = BlockConfig(block);
    const SequenceSlice slice = Rows(/*packed=*/true);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Outcome kept = Train(config, Recompute::kNone, slice, Tokens(1), Tokens(2), dtype);
      for (const auto& [name, way] : kWays) {
        SCOPED_TRACE(block + ", " + name + (dtype == at::kFloat ? "" : ", bf16"));
        ExpectSameBits(Train(config, way, slice, Tokens(1), Tokens(2), dtype), kept);
      }
    }
  }
}

// Bytes per token: of tensors that a forward stores for backward, and the peak of forward and
// backward.
struct Held {
  double kept = 0, most = 0;
};
constexpr int64_t kHeldLength = 256;
Held MeasureHeld(const ModelConfig& config, Recompute recompute) {
  constexpr int64_t kRows = 4;
  LanguageModel model(config);
  Bind(model, at::kFloat);
  const SequenceSlice slice = SequenceSlice::Contiguous(kRows, kHeldLength, 0, at::kCPU);
  const at::Tensor tokens = Tokens(1, kRows, kHeldLength);
  for (int i = 0; i < model.parameters().size(); ++i)
    model.parameters().tensor(i).mutable_grad() = at::zeros_like(model.parameters().tensor(i));
  const test::PeakBytes bytes;
  const at::Tensor hidden =
      model.Hidden(tokens, {.slice = &slice, .training = true, .recompute = recompute, .seed = 5});
  const double kept = bytes.now();
  hidden.sum().backward();
  return {kept / (kRows * kHeldLength), bytes.peak() / (kRows * kHeldLength)};
}

// Each block stores two vectors per token of its residual stream, or the mixer's input instead of
// its intermediates. Backward adds one block, or one mixer, at a time. A plan does not count
// gradients inside it, which are a few per cent for models of realistic depth.
TEST(Recompute, HoldsWhatIsPlanned) {
  ModelConfig config = {.vocab_size = 37, .model_dim = 64, .num_layers = 24};
  config.mixer = MixerConfig("gla", {{"num_heads", int64_t{2}}});
  config.channel_mixer = ChannelMixerConfig("swiglu", {{"width", int64_t{176}}});
  const LanguageModel model(config);
  const ModelCost cost(model, kHeldLength);
  const auto expect_within = [](double got, double planned) {
    EXPECT_NEAR(got, planned, 0.05 * planned);
  };
  double before = INFINITY;
  for (const Recompute way : {Recompute::kNone, Recompute::kMixer, Recompute::kBlock}) {
    SCOPED_TRACE(static_cast<int>(way));
    const Held held = MeasureHeld(config, way);
    const double planned = cost.ActivationBytesPerToken(4, way);
    expect_within(held.most, planned);
    // Gradients of one part's inputs, in backward.
    const double gradients = 4.0 * 64 * static_cast<int>(way);
    expect_within(held.kept, planned - gradients - cost.RecomputedBytesOfLayer(0, 4, way));
    EXPECT_LT(held.most, 0.7 * before);
    before = held.most;
  }
}

}  // namespace
}  // namespace halflife::model
