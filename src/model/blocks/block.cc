#include "model/blocks/block.h"

#include <ATen/TensorOperators.h>

#include <cmath>

#include "core/error.h"

namespace halflife::model {
namespace {

// x += mixer(norm x); x += channel_mixer(norm x): the block of nearly every language model since
// GPT-2. With mixer_residual_post_norm, the mixer's branch is added to the normed input: x = norm x
// + mixer(norm x). A residual_multiplier m scales both branches: x += m mixer(norm x) (Granite).
// A norm_eps above 0 replaces the eps of the model's norm.
struct PreNormOptions : OptionsOf<PreNormOptions> {
  // Multiplies the initial values of the branches' last matrices by 1 / sqrt(2 L), as GPT-2 does.
  bool scale_init_by_depth = false;
  bool mixer_residual_post_norm = false;
  double residual_multiplier = 1;
  double norm_eps = 0;
  std::vector<Option> Fields() override {
    return {{"scale_init_by_depth", &scale_init_by_depth},
            {"mixer_residual_post_norm", &mixer_residual_post_norm},
            {"residual_multiplier", &residual_multiplier},
            {"norm_eps", &norm_eps}};
  }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(residual_multiplier > 0 && std::isfinite(residual_multiplier),
                     "option residual_multiplier is ", residual_multiplier,
                     ". Use a number above 0, or 1 for branches without a factor.");
    problems.Require(norm_eps >= 0 && std::isfinite(norm_eps), "option norm_eps is ", norm_eps,
                     ". Use a number above 0, or 0 for the eps of the model's norm.");
  }
};

class PreNorm : public Block {
 public:
  PreNorm(const PreNormOptions& options, const BlockContext& context)
      : dim_(context.part.model_dim()),
        residual_post_norm_(options.mixer_residual_post_norm),
        multiplier_(options.residual_multiplier) {
    PartContext branch = context.part;
    if (options.scale_init_by_depth)
      branch.output_init_scale =
          1 / std::sqrt(2.0 * static_cast<double>(context.part.sizes.num_layers));
    PartConfig norm = context.norm;
    if (options.norm_eps > 0) {
      HL_CHECK_AS(ExitCode::kUsage, norm.Has("eps"), "the block has a norm_eps, but the norm ",
                  norm.name(), " has no eps. Remove norm_eps.");
      norm.Set("eps", options.norm_eps);
    }
    MakeParts({.part = context.part,
               .norm = norm,
               .mixer = context.mixer,
               .channel_mixer = context.channel_mixer},
              branch);
  }

  void Forward(ResidualStream& stream, const LayerPass& pass) const override {
    stream.Add(Scaled(pass.drop(LayerPass::kMixer, Mix(stream, pass))));
    if (channel_norm_ == nullptr) return;
    stream.Add(Scaled(
        pass.drop(LayerPass::kChannelMixer, channel_mixer_->Apply(stream.Input(*channel_norm_)))));
  }
  // x, the input of either norm.
  double ActivationsPerToken() const override { return num_branches() * static_cast<double>(dim_); }

 private:
  at::Tensor Mix(ResidualStream& stream, const LayerPass& pass) const {
    const NormedInput read = stream.Input(*mixer_norm_);
    if (residual_post_norm_) stream.Replace(read);
    return pass.mix(*mixer_, read);
  }
  at::Tensor Scaled(const at::Tensor& branch) const {
    return multiplier_ == 1 ? branch : branch * multiplier_;
  }

  int64_t dim_;
  bool residual_post_norm_;
  double multiplier_;
};

// Post-norm (Vaswani et al., 2017): x = norm(alpha x + mixer(x)); x = norm(alpha x +
// channel_mixer(x)), with alpha = 1.
// DeepNorm (Wang et al., 2022), for a decoder of L layers: alpha = (2 L)^(1/4), and the initial
// values of the value, output and MLP matrices are multiplied by (8 L)^(-1/4).
struct PostNormOptions : OptionsOf<PostNormOptions> {
  bool deep_norm = false;
  std::vector<Option> Fields() override { return {{"deep_norm", &deep_norm}}; }
};

class PostNorm : public Block {
 public:
  PostNorm(const PostNormOptions& options, const BlockContext& context)
      : dim_(context.part.model_dim()) {
    const auto layers = static_cast<double>(context.part.sizes.num_layers);
    PartContext branch = context.part;
    if (options.deep_norm) {
      alpha_ = std::pow(2 * layers, 0.25);
      branch.value_init_scale = branch.output_init_scale = std::pow(8 * layers, -0.25);
    }
    MakeParts(context, branch);
  }

  void Forward(ResidualStream& stream, const LayerPass& pass) const override {
    const auto join = [&](const Norm& norm, const at::Tensor& branch) {
      at::Tensor x = alpha_ == 1 ? stream.Sum() : stream.Sum() * alpha_;
      stream.Replace(norm.AddAndNorm(x, branch));
    };
    join(*mixer_norm_, pass.drop(LayerPass::kMixer, pass.mix(*mixer_, stream.Sum())));
    if (channel_norm_ == nullptr) return;
    join(*channel_norm_, pass.drop(LayerPass::kChannelMixer, channel_mixer_->Apply(stream.Sum())));
  }
  // Backward keeps the input of both norms.
  double ActivationsPerToken() const override { return num_branches() * static_cast<double>(dim_); }
  bool needs_final_norm() const override { return false; }

 private:
  int64_t dim_;
  double alpha_ = 1;
};

// Sub-LN (Wang et al., 2022, "Foundation Transformers"): pre-norm, with a second norm inside each
// branch, before its last matrix. For a decoder of L layers, the initial values of the value,
// output and MLP matrices are multiplied by sqrt(ln(2 L)).
struct SubLnOptions : OptionsOf<SubLnOptions> {};

class SubLn : public Block {
 public:
  SubLn(const SubLnOptions&, const BlockContext& context) : dim_(context.part.model_dim()) {
    PartContext branch = context.part;
    branch.inner_norm = &context.norm;
    const auto layers = static_cast<double>(context.part.sizes.num_layers);
    branch.value_init_scale = branch.output_init_scale = std::sqrt(std::log(2 * layers));
    MakeParts(context, branch);
  }

  void Forward(ResidualStream& stream, const LayerPass& pass) const override {
    stream.Add(pass.drop(LayerPass::kMixer, pass.mix(*mixer_, stream.Input(*mixer_norm_))));
    if (channel_norm_ == nullptr) return;
    stream.Add(
        pass.drop(LayerPass::kChannelMixer, channel_mixer_->Apply(stream.Input(*channel_norm_))));
  }
  // x (the input of either norm) and the input of each inner norm, which no other part counts.
  double ActivationsPerToken() const override {
    return 2 * num_branches() * static_cast<double>(dim_);
  }

 private:
  int64_t dim_;
};

// The norm at the end of each branch: x += norm(mixer(x)); x += norm(channel_mixer(x)). OLMo 2
// calls it a reordered norm (OLMo Team, 2024). The residual stream itself is not normed, so the
// model needs a final norm.
struct OutputNormOptions : OptionsOf<OutputNormOptions> {};

class OutputNorm : public Block {
 public:
  OutputNorm(const OutputNormOptions&, const BlockContext& context)
      : dim_(context.part.model_dim()) {
    MakeParts(context, context.part);
  }

  void Forward(ResidualStream& stream, const LayerPass& pass) const override {
    stream.Add(pass.drop(LayerPass::kMixer, (*mixer_norm_)(pass.mix(*mixer_, stream.Sum()))));
    if (channel_norm_ == nullptr) return;
    stream.Add(
        pass.drop(LayerPass::kChannelMixer, (*channel_norm_)(channel_mixer_->Apply(stream.Sum()))));
  }
  // Backward keeps the input of both norms. The mixers count their own input, x.
  double ActivationsPerToken() const override { return num_branches() * static_cast<double>(dim_); }

 private:
  int64_t dim_;
};

using BlockVariant = Variant<Block, BlockContext>;

std::vector<BlockVariant> BlockVariants() {
  return {VariantOf<PreNormOptions, PreNorm, Block, BlockContext>("pre_norm"),
          VariantOf<PostNormOptions, PostNorm, Block, BlockContext>("post_norm"),
          VariantOf<SubLnOptions, SubLn, Block, BlockContext>("sub_ln"),
          VariantOf<OutputNormOptions, OutputNorm, Block, BlockContext>("output_norm")};
}

}  // namespace

const PartKind kBlocks = {"block", "pre_norm", [] { return InfosOf(BlockVariants()); }};

std::unique_ptr<Block> MakeBlock(const BlockConfig& config, const BlockContext& context) {
  return MakePart(BlockVariants(), config, context.part.sizes, context);
}

void Block::MakeParts(const BlockContext& context, const PartContext& branch) {
  const ParameterSet& parameters = *context.part.parameters;
  const auto make = [&](auto& part, int64_t& count, const auto& maker) {
    const int64_t before = parameters.num_elements();
    part = maker();
    count += parameters.num_elements() - before;
  };
  const auto norm = [&](const char* name) {
    return MakeNorm(context.norm, context.part.Below(name), context.part.model_dim());
  };
  make(mixer_norm_, num_norm_, [&] { return norm("attn_norm."); });
  make(mixer_, num_mixer_, [&] { return MakeMixer(context.mixer, branch.Below("attn.")); });
  if (context.channel_mixer.name() != kNoChannelMixer)
    make(channel_norm_, num_norm_, [&] { return norm("mlp_norm."); });
  make(channel_mixer_, num_channel_mixer_,
       [&] { return MakeChannelMixer(context.channel_mixer, branch.Below("mlp.")); });
}

void Block::CountParameters(ParameterCount& count) const {
  count.mixer += num_mixer_;
  count.mlp += num_channel_mixer_;
  count.norm += num_norm_;
}

}  // namespace halflife::model
