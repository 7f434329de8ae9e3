// Rows that are split over several ranks give the results of whole rows: outputs and all gradients,
// for every mixer, any split, and documents anywhere. Ranks are threads. Everything runs in fp64,
// so that only mathematical differences show.
#include "model/sequence_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "dist/local_communicator.h"
#include "model/mixer_forms.h"
#include "model/mixers/built_mixer.h"
#include "ops/gradient_check.h"
#include "ops/rows/dropout.h"
#include "ops/sequence/exchange_cost.h"
#include "ops/torch/autograd.h"
#include "support/expect_error.h"

namespace halflife::model {

namespace {

using dist::Communicator;
using dist::LocalWorld;
using ops::StateStrategy;
using ops::Tensors;
using test::Close;
using test::Normal;

constexpr int64_t kBatch = 2, kDim = 16, kSeqLen = 150;
// Sums of a few hundred terms of order 1 in fp64, in another order.
constexpr double kTolerance = 1e-10;

// Uneven splits, with ranks of one token and of none.
const std::vector<std::vector<int64_t>> kCuts = {
    {150}, {63, 87}, {37, 1, 112}, {64, 0, 20, 66}, {1, 19, 20, 24, 1, 35, 50, 0}};

// Document starts by token number b T + t: at a split, inside slices, one token before a split, and
// a row with one document.
std::vector<int32_t> Documents() { return {0, 37, 62, 63, 130, 149, 150, 300}; }

SequenceSlice WholeRows(bool packed) {
  return packed ? SequenceSlice::Packed(kBatch, kSeqLen, Documents(), at::kCPU)
                : SequenceSlice::Contiguous(kBatch, kSeqLen, 0, at::kCPU);
}

// Returns dropout at a site within a mixer in training, which depends on the rows' samples and the
// tokens' positions.
ops::DropoutConfig DropoutAt(uint32_t site, double rate, const SequenceSlice& slice) {
  return {.rate = rate,
          .key = MakeRandomKey(1, RandomPurpose::kTest, site),
          .samples = at::arange(kBatch, at::kLong),
          .first_position = slice.begin};
}

// Returns the output in training, then the gradients of x and all parameters, for a given dL/dy.
Tensors OutputAndGradients(const MixerForm& form, const at::Tensor& x, const at::Tensor& dy,
                           const SequenceSlice& slice) {
  test::BuiltMixer built(form, kDim, at::kDouble, 0.3, {.positions = form.positions});
  built.FillZeros();
  Tensors leaves = {x.clone().requires_grad_(true)};
  for (int i = 0; i < built.parameters().size(); ++i) {
    const std::string& name = built.parameters().specs()[i].name;
    leaves.push_back(built[name].clone().requires_grad_(true));
    built.Set(name, leaves.back());
  }
  const at::Tensor y =
      built
          ->Forward({.x = leaves[0],
                     .slice = slice,
                     .drop =
                         [&](uint32_t site, const at::Tensor& dropped, double rate) {
                           return ops::Dropout(dropped, DropoutAt(site, rate, slice));
                         },
                     .drop_within = [&](uint32_t site,
                                        double rate) { return DropoutAt(site, rate, slice); }})
          .y;
  Tensors results = {y.detach()};
  for (const at::Tensor& gradient : ops::Differentiate({y}, {dy}, leaves, false))
    results.push_back(gradient.defined() ? gradient : at::Tensor());
  return results;
}

// Faults of a rank, for tests that must detect them.
struct Mistakes {
  // Changes the result of operations with this name.
  std::string operation;
  std::function<void(at::Tensor& result)> change = {};
  std::function<void(SequenceSlice& slice)> change_slice = {};
};

class MistakenGroup final : public ops::SegmentGroup {
 public:
  MistakenGroup(std::shared_ptr<SegmentGroup> group, const Mistakes& mistakes)
      : group_(std::move(group)), mistakes_(mistakes) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void Settle() override { group_->Settle(); }
  double TakeWaitSeconds() override { return group_->TakeWaitSeconds(); }
  at::Tensor AllGather(const at::Tensor& x, const char* what) override {
    return Changed(group_->AllGather(x, what), what);
  }
  at::Tensor ReduceScatter(const at::Tensor& x, const char* what) override {
    return Changed(group_->ReduceScatter(x, what), what);
  }
  std::unique_ptr<Transfer> Shift(const at::Tensor& send, const at::Tensor& received,
                                  Direction direction, const char* what) override {
    group_->Shift(send, received, direction, what)->Wait();
    if (received.defined()) Changed(received, what);
    return std::make_unique<Done>();
  }

 private:
  struct Done final : Transfer {
    void Wait() override {}
  };
  at::Tensor Changed(at::Tensor result, const std::string& what) const {
    if (what == mistakes_.operation) mistakes_.change(result);
    return result;
  }

  std::shared_ptr<SegmentGroup> group_;
  const Mistakes& mistakes_;
};

struct Cut {
  std::vector<int64_t> lengths;
  StateStrategy strategy = StateStrategy::kGather;
  bool packed = false;
  const Mistakes* mistakes = nullptr;
};

// Returns the same from slices on ranks, joined.
Tensors OverRanks(const MixerForm& form, const at::Tensor& x, const at::Tensor& dy,
                  const Cut& cut) {
  std::vector<Tensors> of_ranks(cut.lengths.size());
  LocalWorld::Run(static_cast<int>(cut.lengths.size()), [&](Communicator& comm) {
    std::shared_ptr<ops::SegmentGroup> group = MakeSegmentGroup(comm);
    if (cut.mistakes != nullptr) group = std::make_shared<MistakenGroup>(group, *cut.mistakes);
    SequenceParallel parallel = {.group = group, .strategy = cut.strategy, .lengths = cut.lengths};
    if (cut.strategy == StateStrategy::kCheapest) {
      parallel.cost =
          std::make_shared<const ops::ExchangeCost>(ops::MeasureExchange(*group, at::kCPU));
    }
    SequenceSlice slice = parallel.SliceOf(WholeRows(cut.packed));
    if (cut.mistakes != nullptr && cut.mistakes->change_slice) cut.mistakes->change_slice(slice);
    of_ranks[comm.rank()] =
        OutputAndGradients(form, parallel.TokensOf(x), parallel.TokensOf(dy), slice);
    group->Settle();
  });
  Tensors joined;
  for (size_t i = 0; i < of_ranks[0].size(); ++i) {
    Tensors parts;
    for (const Tensors& of_rank : of_ranks)
      if (of_rank[i].defined()) parts.push_back(of_rank[i]);
    if (i < 2 || parts.empty()) {
      joined.push_back(parts.empty() ? at::Tensor() : at::cat(parts, 1));
    } else {
      at::Tensor sum = at::zeros_like(parts[0]);
      for (const at::Tensor& part : parts) sum = sum + part;
      joined.push_back(sum);
    }
  }
  return joined;
}

class SequenceParallelMixer : public testing::TestWithParam<MixerForm> {
 protected:
  SequenceParallelMixer()
      : built_(GetParam(), kDim, at::kDouble, 0.3, {.positions = GetParam().positions}) {}
  MixerTraits traits() const { return built_->traits(); }

  void ExpectWhole(const Cut& cut) const {
    const Tensors want = OutputAndGradients(GetParam(), x_, dy_, WholeRows(cut.packed));
    const Tensors got = OverRanks(GetParam(), x_, dy_, cut);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const std::string what = i == 0   ? "y"
                               : i == 1 ? "dx"
                                        : "gradient of " + built_.parameters().specs()[i - 2].name;
      ASSERT_EQ(got[i].defined(), want[i].defined()) << what;
      if (!want[i].defined()) continue;
      EXPECT_TRUE(Close(got[i], want[i], kTolerance))
          << what << " on " << cut.lengths.size() << " ranks" << (cut.packed ? ", documents" : "");
    }
  }

  test::BuiltMixer built_;
  const at::Tensor x_ = Normal({kBatch, kSeqLen, kDim}, 1);
  const at::Tensor dy_ = Normal({kBatch, kSeqLen, kDim}, 2);
};

INSTANTIATE_TEST_SUITE_P(All, SequenceParallelMixer, testing::ValuesIn(test::AllMixerForms()),
                         [](const auto& tested) { return test::TestNameOf(tested.param); });

TEST_P(SequenceParallelMixer, EqualsWholeRows) {
  if (!traits().splits_rows) GTEST_SKIP() << "rows stay whole";
  for (const std::vector<int64_t>& lengths : kCuts) ExpectWhole({.lengths = lengths});
}

TEST_P(SequenceParallelMixer, EqualsWholeRowsOfDocuments) {
  if (!traits().splits_rows || !traits().packs_documents) GTEST_SKIP() << "one document a row";
  for (const std::vector<int64_t>& lengths : kCuts)
    ExpectWhole({.lengths = lengths, .packed = true});
}

TEST_P(SequenceParallelMixer, StrategiesGiveTheSameBits) {
  if (!traits().splits_rows) GTEST_SKIP() << "rows stay whole";
  const auto run = [&](StateStrategy strategy) {
    return OverRanks(GetParam(), x_, dy_, {.lengths = kCuts[3], .strategy = strategy});
  };
  const Tensors gathered = run(StateStrategy::kGather);
  for (const StateStrategy strategy :
       {StateStrategy::kRing, StateStrategy::kScan, StateStrategy::kCheapest}) {
    const Tensors other = run(strategy);
    for (size_t i = 0; i < gathered.size(); ++i) {
      if (!gathered[i].defined()) continue;
      EXPECT_TRUE(gathered[i].equal(other[i])) << "tensor " << i;
    }
  }
}

// The tests above must detect known mistakes of public code: each one changes an output or gradient
// by a thousand times the tolerance, for every number of ranks.
class SequenceParallelMistake : public testing::Test {
 protected:
  // Returns the largest error of any tensor, relative to its largest element.
  static double ErrorOf(const MixerForm& form, const Mistakes& mistakes, bool packed = false) {
    const at::Tensor x = Normal({kBatch, kSeqLen, kDim}, 1),
                     dy = Normal({kBatch, kSeqLen, kDim}, 2);
    const Tensors want = OutputAndGradients(form, x, dy, WholeRows(packed));
    const Tensors got =
        OverRanks(form, x, dy, {.lengths = kCuts[2], .packed = packed, .mistakes = &mistakes});
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      if (!want[i].defined() || want[i].numel() == 0) continue;
      const double largest = std::max(1.0, want[i].abs().max().item<double>());
      const double error = (got[i] - want[i]).abs().max().item<double>() / largest;
      if (!(error <= worst)) worst = error;  // Keeps a NaN.
      if (std::isnan(worst)) break;
    }
    return worst;
  }
  static MixerForm Usual(const std::string& name) { return {TestForms(name)[0], {}}; }
  static constexpr double kSeen = 1000 * kTolerance;
};

TEST_F(SequenceParallelMistake, StateBeforeDropped) {
  const Mistakes drop = {"state", [](at::Tensor& bytes) { bytes.zero_(); }};
  for (const char* mixer :
       {"retention", "gla", "hgrn2", "gsa", "d2d", "rebased", "leap", "mamba", "mamba2", "rwkv4"})
    EXPECT_GT(ErrorOf(Usual(mixer), drop), kSeen) << mixer;
}

// The gradients of gates across ranks need it.
TEST_F(SequenceParallelMistake, GradientOfTheStateDropped) {
  const Mistakes drop = {"state gradient", [](at::Tensor& bytes) { bytes.zero_(); }};
  for (const char* mixer :
       {"retention", "gla", "hgrn2", "gsa", "d2d", "rebased", "leap", "mamba", "mamba2", "rwkv4"})
    EXPECT_GT(ErrorOf(Usual(mixer), drop), kSeen) << mixer;
}

TEST_F(SequenceParallelMistake, OneTokenOfAHaloLost) {
  const Mistakes lose = {"tokens_before", [](at::Tensor& tokens) {
                           tokens.select(tokens.dim() - 2, tokens.size(-2) - 1).zero_();
                         }};
  for (const char* mixer : {"mamba", "mamba2", "rwkv4", "gated_conv"})
    EXPECT_GT(ErrorOf(Usual(mixer), lose), kSeen) << mixer;
}

TEST_F(SequenceParallelMistake, GradientOfAHaloLost) {
  const Mistakes lose = {"tokens_before gradient", [](at::Tensor& tokens) { tokens.zero_(); }};
  for (const char* mixer : {"softmax", "mamba", "mamba2", "rwkv4", "gated_conv"})
    EXPECT_GT(ErrorOf(Usual(mixer), lose), kSeen) << mixer;
}

TEST_F(SequenceParallelMistake, PositionsCountedFromTheSlice) {
  Mistakes local;
  local.change_slice = [](SequenceSlice& slice) {
    slice.positions = slice.positions - slice.begin;
  };
  for (const char* mixer : {"softmax", "retention"})
    EXPECT_GT(ErrorOf(Usual(mixer), local), kSeen) << mixer;
  const MixerConfig viewed("d2d", {{"num_heads", 2}, {"legacy_view", 160}, {"decay_scale", 0.1}});
  EXPECT_GT(ErrorOf({viewed, {}}, local), kSeen);
}

TEST_F(SequenceParallelMistake, DocumentStartIgnored) {
  Mistakes ignore;
  ignore.change_slice = [](SequenceSlice& slice) {
    ops::RowSegment row = *slice.segment;
    row.has_start.reset();
    slice.segment = std::make_shared<const ops::RowSegment>(row);
  };
  for (const char* mixer : {"rebased", "leap", "mamba", "rwkv4"})
    EXPECT_GT(ErrorOf(Usual(mixer), ignore, /*packed=*/true), kSeen) << mixer;
}

// The second rank receives only after the first has sent everything and released it.
TEST(SegmentGroup, ARankThatOnlySendsGoesOnAtOnce) {
  constexpr int kMessages = 3;
  std::promise<void> sent;
  std::atomic<int> asked = 0;
  LocalWorld::Run(2, [&](Communicator& comm) {
    const std::shared_ptr<ops::SegmentGroup> group = MakeSegmentGroup(comm);
    constexpr auto kToNext = ops::SegmentGroup::Direction::kToNext;
    if (comm.rank() == 0) {
      for (int i = 0; i < kMessages; ++i)
        group->Shift(at::full({4}, i, at::kFloat), {}, kToNext, "state")->Wait();
      sent.set_value();
    } else {
      EXPECT_EQ(sent.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
      for (int i = 0; i < kMessages; ++i) {
        const at::Tensor received = at::empty({4});
        ++asked;
        group->Shift({}, received, kToNext, "state")->Wait();
        EXPECT_TRUE(received.equal(at::full({4}, i, at::kFloat))) << i;
      }
    }
    group->Settle();
    EXPECT_EQ(asked, kMessages);
  });
}

// Strided memory is sent from a copy that only the operation owns.
TEST(SegmentGroup, StridedMemoryIsSentAsItWas) {
  std::promise<void> overwritten;
  LocalWorld::Run(2, [&](Communicator& comm) {
    const std::shared_ptr<ops::SegmentGroup> group = MakeSegmentGroup(comm);
    constexpr auto kToNext = ops::SegmentGroup::Direction::kToNext;
    const at::Tensor wide = at::arange(2 * 64, at::kFloat).view({64, 2});
    if (comm.rank() == 0) {
      group->Shift(wide.select(1, 0), {}, kToNext, "state")->Wait();
      at::full({64}, -1, at::kFloat);  // Overwrites freed memory, where the copy could be.
      overwritten.set_value();
    } else {
      overwritten.get_future().wait();
      const at::Tensor received = at::empty({64});
      group->Shift({}, received, kToNext, "state")->Wait();
      EXPECT_TRUE(received.equal(wide.select(1, 0)));
    }
    group->Settle();
  });
}

TEST(CutRow, IsEvenInUnitsOfTheAlignment) {
  using Lengths = std::vector<int64_t>;
  EXPECT_EQ(CutRow(512, 4, 64), (Lengths{128, 128, 128, 128}));
  EXPECT_EQ(CutRow(300, 2, 64), (Lengths{192, 108}));
  EXPECT_EQ(CutRow(257, 4, 64), (Lengths{128, 64, 64, 1}));
  EXPECT_EQ(CutRow(10, 4, 64), (Lengths{3, 3, 2, 2}));
  EXPECT_EQ(CutRow(3, 4, 64), (Lengths{1, 1, 1, 0}));
}

}  // namespace
}  // namespace halflife::model
