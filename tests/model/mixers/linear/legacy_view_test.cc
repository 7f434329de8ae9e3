// D2D with `legacy_view` equals the public elu training code, which is reproduced here: a table of
// exp(i s Ps), [1, L, H d], viewed as [1, H, L, d], divides the queries and multiplies the keys of
// quadratic weights in fp64. The clamp of exp(Pb (i - j)) at exp(-65) and the eps of each weight
// are included and change nothing within the tolerances. Property numbers are those of D2D's
// required properties.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/language_model.h"
#include "model/mixers/built_mixer.h"
#include "model/mixers/linear/legacy_view.h"
#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;

// With three heads, rows of the view whose number is not a multiple of three begin within a token.
constexpr int64_t kHeads = 3, kHeadDim = 4, kDim = kHeads * kHeadDim;
// Sums of a few hundred positive terms in fp64, of factors exp(+-P) with |P| below 40. Each factor
// has an error of |P| 2^-53.
constexpr double kTolerance = 1e-11;

MixerConfig Viewed(int64_t row_len, int64_t num_heads = kHeads) {
  return MixerConfig("d2d", {{"num_heads", num_heads}, {"legacy_view", row_len}});
}

// Sets Ps to typical trained values, |Ps| below 0.15, and biases to the same magnitude.
void Train(BuiltMixer& mixer) {
  mixer.FillZeros();
  mixer.Set("Ps", 0.05 * Normal({1, mixer["Ps"].numel()}, 3));
}

at::Tensor Leaf(const at::Tensor& x) { return x.detach().to(at::kDouble).clone().requires_grad_(); }

// The public attention on x [B, T, D], with the parameters of a mixer by name.
struct PublicCode {
  explicit PublicCode(const BuiltMixer& mixer) {
    for (const dist::ParamSpec& spec : mixer.parameters().specs())
      parameters[spec.name] = Leaf(mixer[spec.name]);
  }
  at::Tensor operator()(const at::Tensor& x, int64_t row_len, double scale = 1) {
    const int64_t seq_len = x.size(1);
    const auto project = [&](const std::string& name) {  // [B, H, T, d]
      return at::linear(x, parameters[name + "_proj.weight"], parameters[name + "_proj.bias"])
          .unflatten(-1, {kHeads, kHeadDim})
          .transpose(1, 2);
    };
    const auto phi = [](const at::Tensor& y) {
      return at::where(y > 0, y + 1, y.clamp_max(0).exp());
    };
    const at::Tensor place = at::arange(row_len, at::kDouble);
    const at::Tensor table = (place.unsqueeze(1) * scale * parameters["Ps"]).exp().unsqueeze(0);
    const at::Tensor seen =
        table.contiguous().view({1, kHeads, row_len, kHeadDim}).narrow(2, 0, seq_len);
    at::Tensor base = at::zeros({kHeads, 1, 1}, at::kDouble);
    for (int64_t h = 1; h <= kHeads; ++h) base[h - 1].fill_(-std::exp2(-1.0 * kHeads / h));
    base = base.to(at::kFloat).to(at::kDouble);  // Stored in fp32.
    const at::Tensor token = place.narrow(0, 0, seq_len);
    const at::Tensor mask = (base * (token.unsqueeze(1) - token)).clamp(-65, 0).exp();
    const at::Tensor q = phi(project("q")) / seen, k = phi(project("k")) * seen;
    const at::Tensor scores = (q.matmul(k.transpose(2, 3)) * mask + 1e-30).tril();
    const at::Tensor o = (scores / scores.sum(-1, /*keepdim=*/true)).matmul(project("v"));
    return at::linear(o.transpose(1, 2).flatten(2), parameters["o_proj.weight"],
                      parameters["o_proj.bias"]);
  }

  std::map<std::string, at::Tensor> parameters;
};

// Returns the output, then the gradients of x and of every parameter in the order of their names.
std::vector<at::Tensor> Differentiated(const std::function<at::Tensor(const at::Tensor& x)>& run,
                                       const at::Tensor& x_in,
                                       const std::map<std::string, at::Tensor>& parameters) {
  const at::Tensor x = x_in.detach().clone().requires_grad_();
  std::vector<at::Tensor> leaves = {x};
  for (const auto& [name, tensor] : parameters) leaves.push_back(tensor);
  const at::Tensor y = run(x);
  std::vector<at::Tensor> results = {y.detach()};
  for (const at::Tensor& gradient :
       torch::autograd::grad({y}, leaves, {Normal(y.sizes().vec(), 9, y.scalar_type())}))
    results.push_back(gradient);
  return results;
}
std::vector<at::Tensor> Differentiated(BuiltMixer& mixer, const at::Tensor& x) {
  std::map<std::string, at::Tensor> parameters;
  for (const dist::ParamSpec& spec : mixer.parameters().specs()) {
    parameters[spec.name] = mixer[spec.name].detach().clone().requires_grad_();
    mixer.Set(spec.name, parameters[spec.name]);
    parameters[spec.name] = mixer[spec.name];
  }
  return Differentiated([&](const at::Tensor& in) { return mixer.Run(in); }, x, parameters);
}

// Rows as long as in training, shorter ones, and views that begin within a token.
TEST(LegacyView, IsThePublicTrainingCode) {
  struct Rows {
    int64_t row_len, seq_len;
    double scale;
  };
  for (const auto& [row_len, seq_len, scale] :
       std::vector<Rows>{{66, 66, 1}, {200, 200, 1}, {200, 77, 1}, {65, 1, 1}, {130, 130, 0.3}}) {
    SCOPED_TRACE(testing::Message() << "view of " << row_len << ", length " << seq_len);
    MixerConfig config = Viewed(row_len);
    config.Set("decay_scale", scale);
    BuiltMixer mixer(config, kDim);
    Train(mixer);
    const at::Tensor x = Normal({2, seq_len, kDim}, 1);
    PublicCode code(mixer);
    const auto want = Differentiated(
        [&, view = row_len, s = scale](const at::Tensor& in) { return code(in, view, s); }, x,
        code.parameters);
    const auto got = Differentiated(mixer, x);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(Close(got[i], want[i], kTolerance)) << "result " << i;
  }
}

// In fp32, P has an error of |P| 2^-24 on either side, which for |P| below 12 changes a weight by
// 1.4e-6. Products and sums of 130 terms add about as much. Ps has the tolerance of property 4,
// because its gradient is a sum over all tokens, weighted by their powers.
TEST(LegacyView, IsThePublicTrainingCodeInFp32) {
  BuiltMixer mixer(Viewed(130), kDim, at::kFloat);
  Train(mixer);
  const at::Tensor x = Normal({2, 130, kDim}, 1, at::kFloat);
  PublicCode code(mixer);
  const auto want = Differentiated([&](const at::Tensor& in) { return code(in, 130); },
                                   x.to(at::kDouble), code.parameters);
  const auto got = Differentiated(mixer, x);
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(Close(got[i], want[i], i == 2 ? 1e-4 : 1e-5)) << "result " << i;
}

// bf16 operands (property 1): the factors are computed in fp32, and the products are rounded once.
TEST(LegacyView, FactorsOfBf16OperandsAreThoseOfFp32) {
  const int64_t seq_len = 120;
  const at::Tensor positions = at::arange(seq_len, at::kLong).unsqueeze(0).expand({2, seq_len});
  const at::Tensor ps = 0.1 * Normal({1, kDim}, 3, at::kFloat);
  const auto q = [&](uint64_t seed) {
    return Normal({2, seq_len, kHeads, kHeadDim}, seed, at::kBFloat16);
  };
  const LegacyView view = {.num_heads = kHeads, .row_len = 128};
  const QueriesAndKeys half = ApplyLegacyView({.q = q(1), .k = q(2)}, ps, positions, view);
  const QueriesAndKeys wide =
      ApplyLegacyView({.q = q(1).to(at::kFloat), .k = q(2).to(at::kFloat)}, ps, positions, view);
  EXPECT_TRUE(test::BitEqual(half.q, wide.q.to(at::kBFloat16)));
  EXPECT_TRUE(test::BitEqual(half.k, wide.k.to(at::kBFloat16)));
}

// Property 6: without training it has the same bits as ALiBi's form, gradients included.
TEST(LegacyView, UntrainedItIsAlibiInBits) {
  BuiltMixer viewed(Viewed(150), kDim, at::kFloat),
      alibi(MixerConfig("d2d", {{"num_heads", kHeads}, {"decay", "alibi"}}), kDim, at::kFloat);
  for (const dist::ParamSpec& spec : alibi.parameters().specs()) {
    alibi.Set(spec.name, Normal(spec.shape, 4) * 0.3);
    viewed.Set(spec.name, alibi[spec.name]);
  }
  const at::Tensor x = Normal({2, 150, kDim}, 4, at::kFloat);
  // Ps is the first parameter by name.
  auto got = Differentiated(viewed, x);
  const auto want = Differentiated(alibi, x);
  ASSERT_EQ(got.size(), want.size() + 1);
  EXPECT_GT(got[2].abs().min().item<double>(), 0);
  got.erase(got.begin() + 2);
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(test::BitEqual(got[i], want[i])) << "result " << i;
}

// With one head the view is the intended table, so the formula is the paper's. The other kernel's
// state is exp(P) times this one's.
TEST(LegacyView, OneHeadIsThePapersFormula) {
  BuiltMixer viewed(Viewed(100, 1), kDim),
      paper(MixerConfig("d2d", {{"num_heads", 1}, {"eps", 1e-30}}), kDim);
  Train(viewed);
  for (const dist::ParamSpec& spec : paper.parameters().specs())
    paper.Set(spec.name, viewed[spec.name]);
  const at::Tensor x = Normal({2, 100, kDim}, 5);
  const auto got = Differentiated(viewed, x), want = Differentiated(paper, x);
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(Close(got[i], want[i], kTolerance)) << "result " << i;
}

// Property 10 for one length of the view: a later token changes no bit, and a prefix equals the
// start of the whole. For two lengths the outputs differ, as in the published code.
TEST(LegacyView, DependsOnItsLengthAndOnNothingLater) {
  BuiltMixer mixer(Viewed(120), kDim, at::kFloat), other(Viewed(123), kDim, at::kFloat);
  Train(mixer);
  Train(other);
  const at::Tensor x = Normal({2, 120, kDim}, 6, at::kFloat), y = mixer.Run(x);
  for (const int64_t t : {1, 17, 64, 119}) {
    at::Tensor changed = x.clone();
    changed.select(1, t).mul_(-2);
    const at::Tensor after = mixer.Run(changed);
    EXPECT_TRUE(test::BitEqual(after.narrow(1, 0, t), y.narrow(1, 0, t))) << "token " << t;
    EXPECT_FALSE(after.select(1, t).equal(y.select(1, t))) << "token " << t;
  }
  EXPECT_TRUE(Close(mixer.Run(x.narrow(1, 0, 77)), y.narrow(1, 0, 77), 1e-6));
  EXPECT_FALSE(Close(other.Run(x), y, 1e-3));
}

// Decoding, slices with a carried state, and packed documents, whose positions start at 0. The
// conformance suite covers these only for Ps = 0.
TEST(LegacyView, PositionsAreThoseOfTheDocument) {
  constexpr int64_t kSeqLen = 100;
  BuiltMixer mixer(Viewed(kSeqLen), kDim);
  Train(mixer);
  const at::Tensor x = Normal({2, kSeqLen, kDim}, 7), y = mixer.Run(x);

  MixerState state = EmptyState(mixer->traits(), 2, at::kCPU, at::kDouble);
  for (int64_t t = 0; t < kSeqLen; ++t)
    ASSERT_TRUE(
        Close(mixer->Step(x.select(1, t), SequenceSlice::Contiguous(2, 1, t, at::kCPU), state),
              y.select(1, t), kTolerance))
        << t;

  const std::vector<int32_t> cu_seqlens = {0, 1, 65, 100, 130, 200};
  const auto whole = SequenceSlice::Contiguous(2, kSeqLen, 0, at::kCPU),
             packed = SequenceSlice::Packed(2, kSeqLen, cu_seqlens, at::kCPU);
  const at::Tensor documents = mixer->Forward({.x = x, .slice = packed}).y;
  const auto flat = [](const at::Tensor& rows) { return rows.reshape({1, 2 * kSeqLen, kDim}); };
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    const int64_t first = cu_seqlens[i], length = cu_seqlens[i + 1] - first;
    EXPECT_TRUE(Close(flat(documents).narrow(1, first, length),
                      mixer.Run(flat(x).narrow(1, first, length)), kTolerance))
        << "document " << i;
  }
  for (const auto& [slice, want] : {std::pair(&whole, &y), std::pair(&packed, &documents)}) {
    const SequenceSlice left = slice->Narrow(0, 40), right = slice->Narrow(40, kSeqLen - 40);
    const auto before =
        mixer->Forward({.x = x.narrow(1, 0, 40), .slice = left, .want_state = true});
    const at::Tensor after = mixer
                                 ->Forward({.x = x.narrow(1, 40, kSeqLen - 40),
                                            .slice = right,
                                            .initial = &before.state,
                                            .num_past = 40})
                                 .y;
    EXPECT_TRUE(Close(at::cat({before.y, after}, 1), *want, kTolerance));
  }
}

// Gradients with documents: every row of the batch has its own positions.
TEST(LegacyView, GradientsOfDocumentsAreFiniteDifferences) {
  const std::vector<int32_t> cu_seqlens = {0, 21, 30, 42};
  const auto slice = SequenceSlice::Packed(2, 21, cu_seqlens, at::kCPU);
  BuiltMixer mixer(Viewed(21), kDim);
  Train(mixer);
  const at::Tensor weights = Normal({2, 21, kDim}, 8);
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    mixer.Set("Ps", in[1]);
    return (mixer->Forward({.x = in[0], .slice = slice}).y * weights).sum();
  };
  test::ExpectFiniteDifferences(loss, {Normal({2, 21, kDim}, 1), mixer["Ps"]}, 1e-6, /*stride=*/5);
}

// Property 23: also with any number of threads.
TEST(LegacyView, GradientsAreReproducible) {
  test::ExpectSameBitsWithThreads([] {
    BuiltMixer mixer(Viewed(300), kDim, at::kFloat);
    Train(mixer);
    return Differentiated(mixer, Normal({4, 300, kDim}, 10, at::kFloat));
  });
}

// The factors are those of the public code, so they overflow where it does, at |P| = 88.
TEST(LegacyView, OverflowsWhereThePublicCodeDoes) {
  BuiltMixer mixer(Viewed(512), kDim, at::kFloat);
  for (const auto& [ps, finite] : {std::pair(0.16, true), std::pair(0.18, false)}) {
    mixer.Set("Ps", at::full({1, kDim}, ps));
    const at::Tensor y = mixer.Run(Normal({1, 512, kDim}, 11, at::kFloat));
    EXPECT_EQ(y.isfinite().all().item<bool>(), finite) << ps;
  }
}

TEST(LegacyView, KeepsItsFeaturesTwice) {
  const BuiltMixer viewed(Viewed(64), kDim),
      alibi(MixerConfig("d2d", {{"num_heads", kHeads}, {"decay", "alibi"}}), kDim);
  EXPECT_EQ(viewed->ActivationBytesPerToken(64, 4) - alibi->ActivationBytesPerToken(64, 4),
            4.0 * 2 * kDim);
  EXPECT_EQ(viewed->traits().max_tokens, 64);
}

TEST(LegacyView, RefusesLongerRows) {
  const BuiltMixer mixer(Viewed(20), kDim);
  EXPECT_HL_ERROR(mixer.Run(Normal({1, 21, kDim}, 1)), ExitCode::kUsage,
                  "mixer d2d has the legacy_view 20, the longest row, and the row has 21 tokens");
  MixerState state = EmptyState(mixer->traits(), 1, at::kCPU, at::kDouble);
  EXPECT_HL_ERROR(
      mixer->Step(Normal({1, kDim}, 1), SequenceSlice::Contiguous(1, 1, 20, at::kCPU), state),
      ExitCode::kUsage, "21 tokens");
  const LanguageModel model(
      {.vocab_size = 37, .model_dim = kDim, .num_layers = 2, .mixer = Viewed(20)});
  EXPECT_EQ(model.max_positions(), 20);
}

TEST(LegacyView, SaysWhatHasNoView) {
  const auto problems = [](const std::vector<Assignment>& options) {
    MixerConfig config = Viewed(512);
    for (const auto& [name, value] : options) config.Set(name, value);
    return Join(config.Resolve({.model_dim = kDim, .num_layers = 1}), "\n");
  };
  EXPECT_EQ(problems({}), "");
  EXPECT_THAT(
      problems({{"feature_map", "exp"}}),
      testing::HasSubstr("legacy_view 512 with the decay d2d and the feature map exp: public "
                         "code has such a view only for decay d2d with elu"));
  EXPECT_THAT(problems({{"decay", "alibi"}}), testing::HasSubstr("Use legacy_view 0."));
  EXPECT_THAT(problems({{"max_log_decay", 0}}),
              testing::HasSubstr("legacy_view 512 with max_log_decay 0"));
  EXPECT_THAT(problems({{"legacy_view", -1}}), testing::HasSubstr("legacy_view"));
}

}  // namespace
}  // namespace halflife::model
