// The small models for associative recall in which ReBased compares its mixers (Aksenov et al.,
// 2024; based on Zoology's code), and its language models: exact parameter counts of the paper's
// tables, and the residual stream compared with a calculation by hand.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>

#include "model/language_model.h"
#include "model/mixers/direct_convolution.h"
#include "ops/random_tensors.h"
#include "ops/rows/dropout.h"

namespace halflife::model {
namespace {

using test::Close;

// One head, biases everywhere, no rotation, dropout of the probabilities.
MixerConfig OneHead() {
  return MixerConfig("softmax", {{"num_heads", 1},
                                 {"qkv_bias", true},
                                 {"out_bias", true},
                                 {"rope_theta", 0},
                                 {"dropout", 0.1}});
}

struct RecallShape {
  int64_t model_dim, num_positions;
};

// Two blocks without an MLP, learned positions, a tied head, and dropout only on the embedding.
ModelConfig RecallModel(const RecallShape& shape, const MixerConfig& first,
                        const MixerConfig& second) {
  ModelConfig config = {.vocab_size = 8192, .model_dim = shape.model_dim, .num_layers = 2};
  config.embedding.dropout = 0.1;
  config.positions = PositionsConfig("learned", {{"max_positions", shape.num_positions}});
  config.block = BlockConfig("pre_norm", {{"scale_init_by_depth", true}});
  config.norm = NormConfig("layer_norm");
  config.mixer = first;
  config.channel_mixer = ChannelMixerConfig("identity");
  config.head.tied = true;
  config.hybrid = {{.layers = {1}, .mixer = second}};
  return config;
}

int64_t CountOf(const ModelConfig& config) {
  return LanguageModel(config).CountParameters().total();
}

// A cell of table 6 of the paper. Each column has a position table of its own length.
struct Cell {
  RecallShape shape;
  int64_t count;
};

TEST(RecallModels, AttentionHasThePapersParameters) {
  for (const Cell& cell : {Cell{{64, 1024}, 623'744},
                           {{128, 1024}, 1'313'024},
                           {{256, 1024}, 2'888'192},
                           {{512, 1024}, 6'824'960}})
    EXPECT_EQ(CountOf(RecallModel(cell.shape, OneHead(), OneHead())), cell.count);
}

TEST(RecallModels, ConvolutionAndAttentionHaveThePapersParameters) {
  for (const Cell& cell : {Cell{{64, 512}, 578'752},
                           {{128, 128}, 1'149'312},
                           {{256, 128}, 2'462'464},
                           {{512, 128}, 5'580'288}})
    EXPECT_EQ(CountOf(RecallModel(cell.shape, MixerConfig("base_conv"), OneHead())), cell.count);
}

TEST(RecallModels, Rwkv4HasThePapersParameters) {
  const MixerConfig rwkv4("rwkv4");
  for (const Cell& cell : {Cell{{64, 1024}, 623'872},
                           {{128, 1024}, 1'313'280},
                           {{256, 1024}, 2'888'704},
                           {{512, 1024}, 6'825'984}})
    EXPECT_EQ(CountOf(RecallModel(cell.shape, rwkv4, rwkv4)), cell.count);
}

TEST(RecallModels, ConvolutionAndRwkv4HaveThePapersParameters) {
  for (const Cell& cell : {Cell{{64, 2048}, 677'120},
                           {{128, 2048}, 1'395'200},
                           {{256, 512}, 2'561'024},
                           {{512, 512}, 5'777'408}})
    EXPECT_EQ(CountOf(RecallModel(cell.shape, MixerConfig("base_conv"), MixerConfig("rwkv4"))),
              cell.count);
}

// Its blocks have one RMSNorm each, and the last norm is a LayerNorm.
TEST(RecallModels, MambaHasThePapersParameters) {
  for (const Cell& cell : {Cell{{64, 1024}, 655'360},
                           {{128, 1024}, 1'413'120},
                           {{256, 1024}, 3'235'840},
                           {{512, 512}, 7'847'936}}) {
    ModelConfig config = RecallModel(cell.shape, MixerConfig("mamba"), MixerConfig("mamba"));
    config.norm = NormConfig("rms_norm");
    config.final_norm = NormConfig("layer_norm");
    config.channel_mixer = ChannelMixerConfig("none");
    EXPECT_EQ(CountOf(config), cell.count);
  }
}

TEST(RecallModels, BasedAndRebasedHaveThePapersParameters) {
  for (const Cell& cell : {Cell{{64, 256}, 577'984},
                           {{128, 256}, 1'179'520},
                           {{256, 256}, 2'459'392},
                           {{512, 256}, 5'307'904}}) {
    const auto count = [&](const char* mixer) {
      return CountOf(RecallModel(cell.shape, MixerConfig("base_conv"), MixerConfig(mixer)));
    };
    EXPECT_EQ(count("based"), cell.count);
    EXPECT_EQ(count("rebased"), cell.count + 768);  // gamma and beta of q and k, 12 x 16 each.
  }
}

// Returns a language model of section 5.4: 50,280 tokens, no positions, D = 768.
ModelConfig PileModel(int64_t num_layers, int64_t mlp_width, const MixerConfig& mixer) {
  ModelConfig config = {.vocab_size = 50280, .model_dim = 768, .num_layers = num_layers};
  config.mixer = mixer;
  config.channel_mixer = ChannelMixerConfig("swiglu", {{"width", mlp_width}});
  config.head.tied = true;
  return config;
}

TEST(RecallModels, LanguageModelsHaveThePapersParameters) {
  const MixerConfig attention("softmax", {{"num_heads", 12}, {"rope_theta", 0}});
  EXPECT_EQ(CountOf(PileModel(12, 3072, attention)), 151'880'448);
  // Every second of 18 layers has gated convolutions.
  const auto hybrid = [](const char* mixer) {
    ModelConfig config = PileModel(18, 1536, MixerConfig("gated_conv"));
    config.hybrid = {{.every = 2, .first = 1, .mixer = MixerConfig(mixer)}};
    return CountOf(config);
  };
  EXPECT_EQ(hybrid("based"), 147'542'016);
  EXPECT_EQ(hybrid("rebased"), 147'548'928);
}

// A model in fp64 whose parameters can be read by name.
class ByHand : public testing::Test {
 protected:
  static constexpr int64_t kDim = 8, kSeqLen = 7;

  ByHand() : model_(RecallModel({kDim, kSeqLen}, MixerConfig("base_conv"), OneHead())) {
    for (int i = 0; i < model_.parameters().size(); ++i) {
      const dist::ParamSpec& spec = model_.parameters().specs()[i];
      values_[spec.name] = test::Normal(spec.shape, 100 + i) * 0.5;
      model_.parameters().Bind(i, values_[spec.name]);
    }
  }
  at::Tensor Affine(const std::string& name, const at::Tensor& x) const {
    return x.matmul(values_.at(name + ".weight").t()) + values_.at(name + ".bias");
  }
  at::Tensor Norm(const std::string& name, const at::Tensor& x) const {
    return at::layer_norm(x, {kDim}, values_.at(name + ".weight"), values_.at(name + ".bias"),
                          1e-5);
  }
  at::Tensor BaseConv(const at::Tensor& u) const {
    const std::string mixer = "layers.0.attn.";
    const at::Tensor conv = test::ShortSum(u, values_.at(mixer + "conv.conv.weight")) +
                            values_.at(mixer + "conv.conv.bias");
    return conv * Affine(mixer + "projection", u) + u;
  }
  at::Tensor Attention(const at::Tensor& u) const {
    const std::string mixer = "layers.1.attn.";
    const at::Tensor scores =
        Affine(mixer + "q_proj", u).matmul(Affine(mixer + "k_proj", u).transpose(1, 2)) /
        std::sqrt(static_cast<double>(kDim));
    const at::Tensor later = at::ones({kSeqLen, kSeqLen}, at::kBool).triu(1);
    const at::Tensor probabilities =
        at::softmax(scores.masked_fill(later, -std::numeric_limits<double>::infinity()), -1);
    return Affine(mixer + "o_proj", probabilities.matmul(Affine(mixer + "v_proj", u)));
  }

  LanguageModel model_;
  std::map<std::string, at::Tensor> values_;
  const at::Tensor tokens_ = (test::Uniform({2, kSeqLen}, 3) * 8192).to(at::kLong);
  const SequenceSlice slice_ = SequenceSlice::Contiguous(2, kSeqLen, 0, at::kCPU);
  const at::NoGradGuard no_grad_;
};

// r <- r + h; r <- r + mixer(norm r); h = norm' r. A block without an MLP still adds the output of
// its second norm.
TEST_F(ByHand, ABlockWithoutAnMlpAddsItsSecondNorm) {
  at::Tensor r = at::embedding(values_.at("embeddings.weight"), tokens_) +
                 at::embedding(values_.at("positions.weight"), at::arange(kSeqLen));
  r = r + BaseConv(Norm("layers.0.attn_norm", r));
  r = r + Norm("layers.0.mlp_norm", r);
  r = r + Attention(Norm("layers.1.attn_norm", r));
  const at::Tensor h = Norm("layers.1.mlp_norm", r);
  const at::Tensor want = Norm("norm", r + h);
  const at::Tensor hidden = model_.Hidden(tokens_, {.slice = &slice_});
  EXPECT_TRUE(Close(hidden, want, 1e-12));
  // Logits are fp32, of order 10.
  EXPECT_TRUE(Close(model_.Logits(hidden), want.matmul(values_.at("embeddings.weight").t()), 1e-5));
}

// Only the embedding and the attention probabilities have dropout.
TEST(RecallModels, DropoutIsOnlyOnTheEmbedding) {
  const MixerConfig conv("base_conv");
  ModelConfig config = RecallModel({8, 16}, conv, conv);
  config.embedding.dropout = 0.5;
  LanguageModel model(config);
  model.BindOwnMemory(1, false);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = (test::Uniform({1, 16}, 3) * 8192).to(at::kLong);
  const auto slice = SequenceSlice::Contiguous(1, 16, 0, at::kCPU);
  const std::vector<uint64_t> samples = {4};
  const auto hidden = [&](bool training) {
    return model.Hidden(tokens, {.slice = &slice,
                                 .training = training,
                                 .seed = 1,
                                 .samples = ops::SampleNumbers(samples, at::kCPU)});
  };
  EXPECT_FALSE(test::BitEqual(hidden(true), hidden(false)));
  // With tables of zeros, dropout on the embedding has no effect. Dropout on branches would change
  // their biases.
  for (int i = 0; i < model.parameters().size(); ++i) {
    const std::string& name = model.parameters().specs()[i].name;
    const at::Tensor tensor = model.parameters().tensor(i);
    if (i < 2) model.parameters().Bind(i, tensor * 0);
    if (name.ends_with("projection.bias")) model.parameters().Bind(i, tensor + 1);
  }
  EXPECT_GT(hidden(false).abs().max().item<float>(), 0.1);
  EXPECT_TRUE(test::BitEqual(hidden(true), hidden(false)));
}

}  // namespace
}  // namespace halflife::model
