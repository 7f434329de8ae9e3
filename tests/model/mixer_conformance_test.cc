// What every mixer owes to the model, checked for each name in the registry: a new mixer is tested without a line here.
// Everything runs in fp64, so that differences are those of mathematics; the one fp32 test is about bits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/gradient_check.h"
#include "model/mixer.h"

namespace halflife::model {
namespace {

using test::Close;
using test::Normal;

constexpr int64_t kBatch = 2, kDim = 16;
// Sums of some hundred terms of order 1 in fp64, chunked differently.
constexpr double kTolerance = 1e-11;

struct Variant {
  std::string mixer;
  std::map<std::string, std::string> options;
};
void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.mixer;
  for (const auto& [key, value] : variant.options) *out << " " << key << "=" << value;
}

// Every mixer with few heads; further variants of those that have options worth a run.
std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  for (const std::string& name : MixerNames()) variants.push_back({name, {{"num_heads", "2"}}});
  variants.push_back(
      {"retention", {{"num_heads", "4"}, {"num_kv_heads", "2"}, {"use_output_gate", "false"}}});
  variants.push_back(
      {"gla", {{"num_heads", "4"}, {"num_kv_heads", "2"}, {"use_short_conv", "true"}}});
  variants.push_back(
      {"retention", {{"num_heads", "2"}, {"feature_map", "gelu"}, {"norm_affine", "false"}}});
  variants.push_back({"gla", {{"num_heads", "2"}, {"feature_map", "silu"}}});
  variants.push_back(
      {"softmax",
       {{"num_heads", "2"}, {"head_dim", "12"}, {"qkv_bias", "true"}, {"out_bias", "true"}}});
  variants.push_back(
      {"softmax",
       {{"num_heads", "4"}, {"num_kv_heads", "2"}, {"qk_norm", "true"}, {"window", "20"}}});
  return variants;
}

class MixerConformance : public testing::TestWithParam<Variant> {
 protected:
  MixerConformance() { Build(at::kDouble, 0.3); }

  // Weights large enough that decays and scores leave their neutral values.
  void Build(at::ScalarType dtype, double std_dev) {
    parameters_ = std::make_unique<ParameterSet>();
    mixer_ = MakeMixer({.name = GetParam().mixer, .options = GetParam().options},
                       {.model_dim = kDim,
                        .initializer_range = std_dev,
                        .prefix = "attn.",
                        .parameters = parameters_.get()});
    for (int i = 0; i < parameters_->size(); ++i) {
      at::Tensor tensor = at::empty(parameters_->specs()[i].shape, at::kFloat);
      parameters_->Initialise(i, 11, tensor.mutable_data_ptr<float>());
      parameters_->Bind(i, tensor.to(dtype));
    }
  }
  static SequenceSlice Whole(int64_t seq_len) {
    return SequenceSlice::Contiguous(kBatch, seq_len, 0, at::kCPU);
  }
  at::Tensor Run(const at::Tensor& x) const {
    return mixer_->Forward(x, Whole(x.size(1)), nullptr, false).y;
  }
  MixerState EmptyState() const {
    MixerState state = mixer_->EmptyState(kBatch, at::kCPU);
    for (at::Tensor& tensor : state.tensors)
      tensor = tensor.to(parameters_->tensor(0).scalar_type());
    return state;
  }

  std::unique_ptr<ParameterSet> parameters_;
  std::unique_ptr<Mixer> mixer_;
};

std::string TestName(const testing::TestParamInfo<Variant>& info) {
  std::string name = info.param.mixer;
  for (const auto& [key, value] : info.param.options) name += "_" + key + "_" + value;
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, MixerConformance, testing::ValuesIn(Variants()), TestName);

// Decode = parallel, for lengths around the chunk of 64.
TEST_P(MixerConformance, StepsEqualTheParallelForm) {
  for (const int64_t seq_len : {1, 63, 64, 65, 130}) {
    const at::Tensor x = Normal({kBatch, seq_len, kDim}, 1);
    const at::Tensor want = Run(x);
    MixerState state = EmptyState();
    for (int64_t t = 0; t < seq_len; ++t) {
      const at::Tensor y = mixer_->Step(x.select(1, t), state);
      ASSERT_TRUE(Close(y, want.select(1, t), kTolerance)) << "token " << t << " of " << seq_len;
    }
    EXPECT_EQ(state.num_tokens, seq_len);
  }
}

TEST_P(MixerConformance, StateAfterPrefillEqualsStateAfterSteps) {
  const at::Tensor x = Normal({kBatch, 70, kDim}, 2);
  MixerState stepped = EmptyState();
  for (int64_t t = 0; t < 70; ++t) mixer_->Step(x.select(1, t), stepped);
  const MixerState prefilled = mixer_->Forward(x, Whole(70), nullptr, true).state;
  EXPECT_EQ(prefilled.num_tokens, 70);
  ASSERT_EQ(prefilled.tensors.size(), stepped.tensors.size());
  for (size_t i = 0; i < stepped.tensors.size(); ++i) {
    const at::Tensor used =
        mixer_->constant_state() ? stepped.tensors[i] : stepped.tensors[i].narrow(1, 0, 70);
    EXPECT_TRUE(Close(prefilled.tensors[i], used, kTolerance)) << "state tensor " << i;
  }
  if (mixer_->constant_state()) {
    EXPECT_EQ(prefilled.bytes(), EmptyState().bytes());
  }
}

TEST_P(MixerConformance, SplitAnywhereAndCarryTheStateIsTheWhole) {
  const at::Tensor x = Normal({kBatch, 90, kDim}, 3);
  const at::Tensor want = Run(x);
  for (const int64_t cut : {1, 2, 31, 64, 89}) {
    const MixerOutput first =
        mixer_->Forward(x.narrow(1, 0, cut), Whole(90).Narrow(0, cut), nullptr, true);
    const MixerOutput second = mixer_->Forward(x.narrow(1, cut, 90 - cut),
                                               Whole(90).Narrow(cut, 90 - cut), &first.state, true);
    EXPECT_TRUE(Close(at::cat({first.y, second.y}, 1), want, kTolerance)) << "cut at " << cut;
    EXPECT_EQ(second.state.num_tokens, 90);
  }
}

TEST_P(MixerConformance, PackedDocumentsAreSeparateSequences) {
  const at::Tensor x = Normal({kBatch, 100, kDim}, 4);
  const std::vector<int32_t> cu_seqlens = {0, 1, 65, 100, 130, 200};  // 100 = start of row 1
  const at::Tensor packed =
      mixer_->Forward(x, SequenceSlice::Packed(kBatch, 100, cu_seqlens, at::kCPU), nullptr, false)
          .y;
  const at::Tensor flat = x.view({1, 200, kDim}), got = packed.view({1, 200, kDim});
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    const int64_t begin = cu_seqlens[i], length = cu_seqlens[i + 1] - begin;
    const at::Tensor want =
        mixer_
            ->Forward(flat.narrow(1, begin, length),
                      SequenceSlice::Contiguous(1, length, 0, at::kCPU), nullptr, false)
            .y;
    EXPECT_TRUE(Close(got.narrow(1, begin, length), want, kTolerance)) << "document " << i;
  }
}

// A slice of packed rows: the state reaches up to the first start in it, and not beyond.
TEST_P(MixerConformance, SplitOfPackedRowsIsTheWhole) {
  const at::Tensor x = Normal({kBatch, 100, kDim}, 5);
  const std::vector<int32_t> cu_seqlens = {0, 30, 55, 100, 180, 200};
  const auto whole = SequenceSlice::Packed(kBatch, 100, cu_seqlens, at::kCPU);
  const at::Tensor want = mixer_->Forward(x, whole, nullptr, false).y;
  for (const int64_t cut : {1, 30, 40, 55, 80, 99}) {
    const MixerOutput first =
        mixer_->Forward(x.narrow(1, 0, cut), whole.Narrow(0, cut), nullptr, true);
    const at::Tensor rest = mixer_
                                ->Forward(x.narrow(1, cut, 100 - cut), whole.Narrow(cut, 100 - cut),
                                          &first.state, false)
                                .y;
    EXPECT_TRUE(Close(at::cat({first.y, rest}, 1), want, kTolerance)) << "cut at " << cut;
  }
}

// In fp32, where a leak of rounding would show: outputs before a changed token keep their bits.
TEST_P(MixerConformance, LaterTokensLeaveEarlierOutputsAlone) {
  Build(at::kFloat, 0.3);
  const at::Tensor x = Normal({kBatch, 100, kDim}, 6, at::kFloat);
  const at::Tensor before = Run(x);
  for (const int64_t t : {0, 17, 63, 64, 99}) {
    at::Tensor changed = x.clone();
    changed.select(1, t).mul_(-2);
    const at::Tensor after = Run(changed);
    EXPECT_TRUE(test::BitEqual(after.narrow(1, 0, t), before.narrow(1, 0, t))) << "token " << t;
    EXPECT_FALSE(after.select(1, t).equal(before.select(1, t))) << "token " << t;
  }
}

TEST_P(MixerConformance, GradientsAreFiniteDifferences) {
  constexpr int64_t kSeqLen = 21;
  const std::vector<int32_t> cu_seqlens = {0, 21, 30, 42};  // documents in row 1 only
  const auto slice = SequenceSlice::Packed(kBatch, kSeqLen, cu_seqlens, at::kCPU);
  const at::Tensor weights = Normal({kBatch, kSeqLen, kDim}, 7);
  std::vector<at::Tensor> inputs = {Normal({kBatch, kSeqLen, kDim}, 8)};
  for (int i = 0; i < parameters_->size(); ++i) inputs.push_back(parameters_->tensor(i));
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    for (int i = 0; i < parameters_->size(); ++i) parameters_->Bind(i, in[1 + i]);
    return (mixer_->Forward(in[0], slice, nullptr, false).y * weights).sum();
  };
  test::ExpectFiniteDifferences(loss, inputs, 1e-5, /*stride=*/7);
}

// Through the state of an earlier slice: gradients of its tokens from losses on the later ones, and from the last state.
TEST_P(MixerConformance, GradientsFlowThroughTheState) {
  const at::Tensor weights = Normal({kBatch, 9, kDim}, 9);
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    const auto first = mixer_->Forward(in[0], Whole(20).Narrow(0, 11), nullptr, true);
    const auto second = mixer_->Forward(in[1], Whole(20).Narrow(11, 9), &first.state, true);
    return (second.y * weights).sum() + second.state.tensors[0].square().sum();
  };
  test::ExpectFiniteDifferences(
      loss, {Normal({kBatch, 11, kDim}, 10), Normal({kBatch, 9, kDim}, 11)}, 1e-5, /*stride=*/5);
}

TEST_P(MixerConformance, DeclaresWhatItCosts) {
  int64_t matrix_elements = 0;
  for (const dist::ParamSpec& spec : parameters_->specs()) {
    EXPECT_EQ(spec.name.rfind("attn.", 0), 0u) << spec.name;
    const bool is_matrix = spec.shape.size() == 2;
    EXPECT_EQ(spec.weight_decay, is_matrix) << spec.name;
    if (is_matrix) matrix_elements += spec.count();
  }
  const FlopCount flops = mixer_->FlopsPerToken(128);
  EXPECT_EQ(flops.matmul, 2.0 * static_cast<double>(matrix_elements));
  EXPECT_GT(flops.mixing, 0);
  EXPECT_GT(mixer_->ActivationBytesPerToken(128, 4), 4.0 * kDim);
  if (mixer_->constant_state()) {
    EXPECT_EQ(mixer_->FlopsPerToken(256).mixing, flops.mixing);
  }
}

}  // namespace
}  // namespace halflife::model
