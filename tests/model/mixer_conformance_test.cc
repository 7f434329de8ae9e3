// The contract of every mixer, checked for each name in the registry, so a new mixer is tested
// without a new line here. Everything runs in fp64, so that only mathematical differences show. The
// one fp32 test compares bits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <string>
#include <vector>

#include "model/mixer.h"
#include "model/mixer_forms.h"
#include "ops/gradient_check.h"
#include "ops/softmax_attention/softmax_attention.h"
#include "support/expect_error.h"

namespace halflife::model {

namespace {

using test::Close;
using test::Normal;

constexpr int64_t kBatch = 2, kDim = 16;
// Sums of a few hundred terms of order 1 in fp64, chunked differently.
constexpr double kTolerance = 1e-11;

class MixerConformance : public testing::TestWithParam<MixerForm> {
 protected:
  MixerConformance() { Build(at::kDouble, 0.3); }

  // Weights are large enough that decays and scores differ from their neutral values.
  void Build(at::ScalarType dtype, double std_dev) {
    parameters_ = std::make_unique<ParameterSet>();
    // The last of three layers, because some mixers differ by layer.
    PartContext context = {.sizes = {.model_dim = kDim, .num_layers = 3},
                           .layer = 2,
                           .prefix = "attn.",
                           .parameters = parameters_.get(),
                           .initializer_range = std_dev};
    positions_ = MakePositions(GetParam().positions, context);
    context.positions = positions_.get();
    mixer_ = MakeMixer(GetParam(), context);
    for (int i = 0; i < parameters_->size(); ++i) {
      at::Tensor tensor = at::empty(parameters_->specs()[i].shape, at::kFloat);
      parameters_->Initialise(i, 11, tensor.mutable_data_ptr<float>());
      parameters_->Bind(i, tensor.to(dtype));
    }
  }
  static SequenceSlice Whole(int64_t seq_len) {
    return SequenceSlice::Contiguous(kBatch, seq_len, 0, at::kCPU);
  }
  static SequenceSlice TokenAt(int64_t position) {
    return SequenceSlice::Contiguous(kBatch, 1, position, at::kCPU);
  }
  at::Tensor Run(const at::Tensor& x) const { return Run(x, Whole(x.size(1))); }
  at::Tensor Run(const at::Tensor& x, const SequenceSlice& slice) const {
    return mixer_->Forward({.x = x, .slice = slice}).y;
  }
  // Runs the mixer after `num_past` tokens that left the state `initial`, and returns the new state
  // too.
  MixerOutput Continue(const at::Tensor& x, const SequenceSlice& slice, const MixerState* initial,
                       int64_t num_past) const {
    return mixer_->Forward(
        {.x = x, .slice = slice, .initial = initial, .num_past = num_past, .want_state = true});
  }
  MixerState Empty() const {
    return EmptyState(mixer_->traits(), kBatch, at::kCPU, parameters_->tensor(0).scalar_type());
  }
  // Returns the used part of a tensor that grows with the tokens.
  at::Tensor InUse(const MixerState& state, size_t index, int64_t num_tokens) const {
    const at::Tensor& tensor = state.tensors[index];
    return mixer_->traits().state[index].grows() ? tensor.narrow(1, 0, num_tokens) : tensor;
  }
  // Returns exp of the log scale of tensor `index`, or 1, without gradient. The tensor is
  // multiplied with it.
  at::Tensor Scale(const MixerState& state, size_t index) const {
    const int log_scale = mixer_->traits().state[index].log_scale;
    if (log_scale < 0) return at::ones({1}, at::kDouble);
    at::Tensor scale = state.tensors[log_scale].detach().exp();
    while (scale.dim() < state.tensors[index].dim()) scale = scale.unsqueeze(-1);
    return scale;
  }
  // Returns the effective value of a tensor: with its scale applied, and only the used part of a
  // tensor that grows. A scale by itself has no value, because another one would be equivalent.
  at::Tensor Value(const MixerState& state, size_t index, int64_t num_tokens) const {
    if (mixer_->traits().state[index].exchange == StateExchange::kLogScale)
      return at::zeros({1}, at::kDouble);
    return InUse(state, index, num_tokens) * Scale(state, index);
  }
  bool causal() const { return mixer_->traits().causal; }
  bool packs() const { return mixer_->traits().packs_documents; }

  std::unique_ptr<ParameterSet> parameters_;
  std::unique_ptr<Positions> positions_;
  std::unique_ptr<Mixer> mixer_;
};

INSTANTIATE_TEST_SUITE_P(All, MixerConformance, testing::ValuesIn(test::AllMixerForms()),
                         [](const auto& tested) { return test::TestNameOf(tested.param); });

// Decoding equals the parallel form for lengths around the chunk of 64.
TEST_P(MixerConformance, StepsEqualTheParallelForm) {
  if (!causal()) GTEST_SKIP() << "sees later tokens";
  for (const int64_t seq_len : {1, 63, 64, 65, 130}) {
    const at::Tensor x = Normal({kBatch, seq_len, kDim}, 1);
    const at::Tensor want = Run(x);
    MixerState state = Empty();
    for (int64_t t = 0; t < seq_len; ++t) {
      const at::Tensor y = mixer_->Step(x.select(1, t), TokenAt(t), state);
      ASSERT_TRUE(Close(y, want.select(1, t), kTolerance)) << "token " << t << " of " << seq_len;
    }
  }
}

// Needed for steps that are replayed as a graph: the position is a tensor that is incremented, and
// the host does not read it.
TEST_P(MixerConformance, StepsOfAConstantStateDependOnlyOnPositions) {
  if (!causal() || !mixer_->traits().constant_state()) GTEST_SKIP() << "its state grows";
  const at::Tensor x = Normal({kBatch, 20, kDim}, 1);
  const at::Tensor positions = at::zeros({kBatch, 1}, at::kLong);
  MixerState counted = Empty(), followed = Empty();
  for (int64_t t = 0; t < 20; ++t) {
    const at::Tensor want = mixer_->Step(x.select(1, t), TokenAt(t), counted);
    ASSERT_TRUE(
        mixer_->Step(x.select(1, t), SequenceSlice::OfToken(positions), followed).equal(want))
        << "token " << t;
    positions.add_(1);
  }
}

TEST_P(MixerConformance, StateAfterPrefillEqualsStateAfterSteps) {
  if (!causal()) GTEST_SKIP() << "sees later tokens";
  const at::Tensor x = Normal({kBatch, 70, kDim}, 2);
  MixerState stepped = Empty();
  for (int64_t t = 0; t < 70; ++t) mixer_->Step(x.select(1, t), TokenAt(t), stepped);
  const MixerState prefilled = Continue(x, Whole(70), nullptr, 0).state;
  ASSERT_EQ(prefilled.tensors.size(), stepped.tensors.size());
  for (size_t i = 0; i < stepped.tensors.size(); ++i)
    EXPECT_TRUE(Close(Value(prefilled, i, 70), Value(stepped, i, 70), kTolerance))
        << mixer_->traits().state[i].name;
  if (mixer_->traits().constant_state()) {
    EXPECT_EQ(prefilled.bytes(), Empty().bytes());
  }
}

// The state has the tensors that the traits declare, and starts empty.
TEST_P(MixerConformance, TraitsDescribeTheState) {
  const MixerTraits traits = mixer_->traits();
  const MixerState state = Continue(Normal({kBatch, 5, kDim}, 12), Whole(5), nullptr, 0).state;
  ASSERT_EQ(state.tensors.size(), traits.state.size());
  for (size_t i = 0; i < traits.state.size(); ++i) {
    std::vector<int64_t> shape = {kBatch};
    for (const int64_t size : traits.state[i].shape)
      shape.push_back(size == StateTensor::kGrows ? 5 : size);
    EXPECT_EQ(state.tensors[i].sizes().vec(), shape) << traits.state[i].name;
    EXPECT_FALSE(traits.state[i].name.empty());
    EXPECT_EQ(traits.state[i].grows(), traits.state[i].exchange == StateExchange::kGather);
  }
  const at::Tensor x = Normal({kBatch, 5, kDim}, 12);
  const MixerState empty = Empty();
  EXPECT_TRUE(Close(Continue(x, Whole(5), &empty, 0).y, Run(x), kTolerance));
}

// Overridden position ids change the outputs of mixers that declare it, and of no others. Methods
// that also count token distances may use the ids for rotations, so they are not checked.
TEST_P(MixerConformance, TraitsDeclareTheUseOfPositionIds) {
  const at::Tensor x = Normal({kBatch, 30, kDim}, 13);
  SequenceSlice slice = Whole(30);
  slice.given_position_ids = slice.positions * 3;
  const at::Tensor own = Run(x), given = Run(x, slice);
  const MixerTraits traits = mixer_->traits();
  if (traits.reads_position_ids) {
    EXPECT_GT((given - own).abs().max().item<double>(), 1e-6);
  } else if (!traits.takes_positions || !positions_->in_attention()) {
    EXPECT_TRUE(given.equal(own));
  }
}

TEST_P(MixerConformance, TraitsDeclareProbabilities) {
  const SequenceSlice slice = Whole(9);
  bool shown = false;
  mixer_->Forward({.x = Normal({kBatch, 9, kDim}, 14),
                   .slice = slice,
                   .observe = [&](const auto&, const ops::SoftmaxAttentionConfig& config) {
                     shown = !config.squared_relu;
                   }});
  EXPECT_EQ(mixer_->traits().has_attention_probabilities, shown);
}

// The state after a slice depends on the state before it as StateExchange declares.
TEST_P(MixerConformance, StateCrossesASliceByItsRule) {
  if (!causal()) GTEST_SKIP() << "sees later tokens";
  const at::Tensor x = Normal({kBatch, 12, kDim}, 13);
  const auto whole = Whole(24);
  const auto after = [&](const MixerState& before) {
    return Continue(x, whole.Narrow(12, 12), &before, 12).state;
  };
  // Three possible states of rows: those that other tokens leave.
  std::vector<MixerState> before;
  for (const uint64_t seed : {14, 15, 16})
    before.push_back(
        Continue(Normal({kBatch, 12, kDim}, seed), whole.Narrow(0, 12), nullptr, 0).state);
  const MixerState a = after(before[0]), b = after(before[1]);
  for (size_t i = 0; i < mixer_->traits().state.size(); ++i) {
    const StateTensor& trait = mixer_->traits().state[i];
    switch (trait.exchange) {
      case StateExchange::kAffine: {
        // after(p + q - r) = after(p) + after(q) - after(r), with the other tensors equal.
        std::vector<MixerState> mixed(3, before[2]);
        for (const size_t k : {0, 1})
          mixed[k].tensors[i] = before[k].tensors[i] * Scale(before[k], i) / Scale(before[2], i);
        MixerState sum = before[2];
        sum.tensors[i] = mixed[0].tensors[i] + mixed[1].tensors[i] - before[2].tensors[i];
        const at::Tensor want =
            after(mixed[0]).tensors[i] + after(mixed[1]).tensors[i] - after(mixed[2]).tensors[i];
        EXPECT_TRUE(Close(after(sum).tensors[i], want, kTolerance)) << trait.name;
        break;
      }
      case StateExchange::kTail:  // 12 tokens are more than any tail holds.
        EXPECT_TRUE(Close(a.tensors[i], b.tensors[i], kTolerance)) << trait.name;
        break;
      case StateExchange::kGather: {
        // The slice's contribution does not depend on the gathered state, with the other tensors
        // equal.
        MixerState mixed = before[0];
        mixed.tensors[i] = before[1].tensors[i];
        EXPECT_TRUE(Close(a.tensors[i].narrow(1, 0, 12), before[0].tensors[i], kTolerance));
        EXPECT_TRUE(Close(a.tensors[i].narrow(1, 12, 12), after(mixed).tensors[i].narrow(1, 12, 12),
                          kTolerance))
            << trait.name;
        break;
      }
      case StateExchange::kLogScale: {
        MixerState shifted = before[0];
        shifted.tensors[i] = before[0].tensors[i] + 0.75;
        for (size_t k = 0; k < shifted.tensors.size(); ++k)
          if (mixer_->traits().state[k].log_scale == static_cast<int>(i))
            shifted.tensors[k] = before[0].tensors[k] * std::exp(-0.75);
        const MixerState c = after(shifted);
        for (size_t k = 0; k < c.tensors.size(); ++k)
          EXPECT_TRUE(Close(Value(c, k, 24), Value(a, k, 24), kTolerance)) << trait.name;
        break;
      }
    }
  }
}

TEST_P(MixerConformance, SplitAnywhereAndCarryTheStateIsTheWhole) {
  if (!causal()) GTEST_SKIP() << "sees later tokens";
  const at::Tensor x = Normal({kBatch, 90, kDim}, 3);
  const at::Tensor want = Run(x);
  for (const int64_t cut : {1, 2, 31, 64, 89}) {
    const MixerOutput first = Continue(x.narrow(1, 0, cut), Whole(90).Narrow(0, cut), nullptr, 0);
    const MixerOutput second =
        Continue(x.narrow(1, cut, 90 - cut), Whole(90).Narrow(cut, 90 - cut), &first.state, cut);
    EXPECT_TRUE(Close(at::cat({first.y, second.y}, 1), want, kTolerance)) << "cut at " << cut;
  }
}

TEST_P(MixerConformance, PackedDocumentsAreSeparateSequences) {
  if (!packs()) GTEST_SKIP() << "a mixer of whole rows";
  const at::Tensor x = Normal({kBatch, 100, kDim}, 4);
  const std::vector<int32_t> cu_seqlens = {0, 1, 65, 100, 130, 200};  // 100 is the start of row 1.
  const at::Tensor packed = Run(x, SequenceSlice::Packed(kBatch, 100, cu_seqlens, at::kCPU));
  const at::Tensor flat = x.view({1, 200, kDim}), got = packed.view({1, 200, kDim});
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    const int64_t begin = cu_seqlens[i], length = cu_seqlens[i + 1] - begin;
    const at::Tensor want =
        Run(flat.narrow(1, begin, length), SequenceSlice::Contiguous(1, length, 0, at::kCPU));
    EXPECT_TRUE(Close(got.narrow(1, begin, length), want, kTolerance)) << "document " << i;
  }
}

// In a slice of packed rows, the state reaches up to the first document start and not beyond.
TEST_P(MixerConformance, SplitOfPackedRowsIsTheWhole) {
  if (!causal()) GTEST_SKIP() << "sees later tokens";
  if (!packs()) GTEST_SKIP() << "a mixer of whole rows";
  const at::Tensor x = Normal({kBatch, 100, kDim}, 5);
  const std::vector<int32_t> cu_seqlens = {0, 30, 55, 100, 180, 200};
  const auto whole = SequenceSlice::Packed(kBatch, 100, cu_seqlens, at::kCPU);
  const at::Tensor want = Run(x, whole);
  for (const int64_t cut : {1, 30, 40, 55, 80, 99}) {
    const MixerOutput first = Continue(x.narrow(1, 0, cut), whole.Narrow(0, cut), nullptr, 0);
    const at::Tensor rest =
        Continue(x.narrow(1, cut, 100 - cut), whole.Narrow(cut, 100 - cut), &first.state, cut).y;
    EXPECT_TRUE(Close(at::cat({first.y, rest}, 1), want, kTolerance)) << "cut at " << cut;
  }
}

// Rows that the traits exclude are refused and not computed incorrectly.
TEST_P(MixerConformance, RefusesRowsThatItsTraitsExclude) {
  const MixerTraits traits = mixer_->traits();
  if (!packs()) {
    const std::vector<int32_t> cu_seqlens = {0, 5, 9, 18};
    EXPECT_HL_ERROR(
        Run(Normal({kBatch, 9, kDim}, 4), SequenceSlice::Packed(kBatch, 9, cu_seqlens, at::kCPU)),
        ExitCode::kUsage, GetParam().name(), "several documents");
  }
  if (!traits.causal) {
    MixerState state = Empty();
    EXPECT_HL_ERROR(mixer_->Step(Normal({kBatch, kDim}, 4), TokenAt(3), state), ExitCode::kUsage,
                    "sees later tokens");
    EXPECT_HL_ERROR(Continue(Normal({kBatch, 9, kDim}, 4), Whole(9), &state, 3), ExitCode::kUsage,
                    "sees later tokens");
  }
  if (traits.max_tokens == 0) return;
  const int64_t seq_len = traits.max_tokens + 1;
  EXPECT_EQ(Run(Normal({kBatch, seq_len - 1, kDim}, 5)).size(1), seq_len - 1);
  EXPECT_HL_ERROR(Run(Normal({kBatch, seq_len, kDim}, 5)), ExitCode::kUsage, GetParam().name(),
                  Concat(seq_len, " tokens"));
}

// In fp32, so that a dependence below fp64's tolerance shows: outputs before a changed token keep
// their bits. Mixers that round by whole rows keep them up to rounding.
TEST_P(MixerConformance, LaterTokensDoNotChangeEarlierOutputs) {
  if (!causal()) GTEST_SKIP() << "sees later tokens";
  Build(at::kFloat, 0.3);
  const at::Tensor x = Normal({kBatch, 100, kDim}, 6, at::kFloat);
  const at::Tensor before = Run(x);
  for (const int64_t t : {0, 17, 63, 64, 99}) {
    at::Tensor changed = x.clone();
    changed.select(1, t).mul_(-2);
    const at::Tensor after = Run(changed);
    if (mixer_->traits().causal_in_bits) {
      EXPECT_TRUE(test::BitEqual(after.narrow(1, 0, t), before.narrow(1, 0, t))) << "token " << t;
    } else {  // Sums of a few hundred terms of order 1 in fp32.
      EXPECT_TRUE(Close(after.narrow(1, 0, t), before.narrow(1, 0, t), 1e-5)) << "token " << t;
    }
    EXPECT_FALSE(after.select(1, t).equal(before.select(1, t))) << "token " << t;
  }
}

TEST_P(MixerConformance, GradientsAreFiniteDifferences) {
  constexpr int64_t kSeqLen = 21;
  const std::vector<int32_t> cu_seqlens = {0, 21, 30, 42};  // Documents in row 1 only.
  const auto slice =
      packs() ? SequenceSlice::Packed(kBatch, kSeqLen, cu_seqlens, at::kCPU) : Whole(kSeqLen);
  const at::Tensor weights = Normal({kBatch, kSeqLen, kDim}, 7);
  std::vector<at::Tensor> inputs = {Normal({kBatch, kSeqLen, kDim}, 8)};
  for (int i = 0; i < parameters_->size(); ++i) inputs.push_back(parameters_->tensor(i));
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    for (int i = 0; i < parameters_->size(); ++i) parameters_->Bind(i, in[1 + i]);
    return (Run(in[0], slice) * weights).sum();
  };
  // This option treats a divisor as a constant in the gradient. The head's norm cancels the divisor
  // except for its eps of 1e-6, relative to squared outputs of a few tenths. retnet_test.cc checks
  // the exact gradient.
  const MixerConfig& mixer = GetParam();
  const bool detached =
      mixer.Has("row_norm") && mixer.Get<std::string>("row_norm") == "torchscale_parallel";
  test::ExpectFiniteDifferences(loss, inputs, detached ? 1e-4 : 1e-5, /*stride=*/7);
}

// Losses on later tokens and on the final state have gradients for the tokens of an earlier slice,
// through its state.
TEST_P(MixerConformance, GradientsFlowThroughTheState) {
  if (!causal()) GTEST_SKIP() << "sees later tokens";
  const at::Tensor weights = Normal({kBatch, 9, kDim}, 9);
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    const auto first = Continue(in[0], Whole(20).Narrow(0, 11), nullptr, 0);
    const auto second = Continue(in[1], Whole(20).Narrow(11, 9), &first.state, 11);
    at::Tensor sum = (second.y * weights).sum();
    for (size_t i = 0; i < second.state.tensors.size(); ++i)
      sum = sum + Value(second.state, i, 20).square().sum();
    return sum;
  };
  test::ExpectFiniteDifferences(
      loss, {Normal({kBatch, 11, kDim}, 10), Normal({kBatch, 9, kDim}, 11)}, 1e-5, /*stride=*/5);
}

TEST_P(MixerConformance, DeclaresWhatItCosts) {
  int64_t matrix_elements = 0;
  for (int i = 0; i < parameters_->size(); ++i) {
    const dist::ParamSpec& spec = parameters_->specs()[i];
    // A parameter that all layers share has no prefix.
    const bool is_shared = spec.name.find('.') == std::string::npos;
    EXPECT_TRUE(is_shared || spec.name.starts_with("attn.")) << spec.name;
    // Matrices that multiply x are in the compute dtype. A mixer may decay other parameters, but
    // never a norm's weight.
    if (spec.shape.size() == 2 && spec.region == dist::Region::kCompute)
      matrix_elements += spec.count();
    const bool starts_at_one = parameters_->tensor(i).eq(1).all().item<bool>();
    EXPECT_FALSE(spec.weight_decay && starts_at_one) << spec.name;
  }
  const FlopCount flops = mixer_->FlopsPerToken(128);
  // A matrix that is applied to every head of a token counts once per head.
  EXPECT_GE(flops.matmul, 2.0 * static_cast<double>(matrix_elements));
  EXPECT_GT(flops.mixing, 0);
  EXPECT_GT(mixer_->ActivationBytesPerToken(128, 4), 4.0 * kDim);
  if (causal() && mixer_->traits().constant_state()) {
    EXPECT_EQ(mixer_->FlopsPerToken(256).mixing, flops.mixing);
  }
}

}  // namespace
}  // namespace halflife::model
