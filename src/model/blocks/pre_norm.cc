// x += mixer(norm x); x += channel_mixer(norm x): the block of nearly every language model since
// GPT-2. With mixer_residual_post_norm, the mixer's branch is added to the normed input: x = norm x
// + mixer(norm x).
#include <cmath>

#include "model/blocks/variants.h"

namespace halflife::model {
namespace {

struct PreNormOptions : OptionsOf<PreNormOptions> {
  // Multiplies the initial values of the branches' last matrices by 1 / sqrt(2 L), as GPT-2 does.
  bool scale_init_by_depth = false;
  bool mixer_residual_post_norm = false;
  std::vector<Option> Fields() override {
    return {{"scale_init_by_depth", &scale_init_by_depth},
            {"mixer_residual_post_norm", &mixer_residual_post_norm}};
  }
};

class PreNorm : public Block {
 public:
  PreNorm(const PreNormOptions& options, const BlockContext& context)
      : dim_(context.part.model_dim()), residual_post_norm_(options.mixer_residual_post_norm) {
    PartContext branch = context.part;
    if (options.scale_init_by_depth)
      branch.output_init_scale =
          1 / std::sqrt(2.0 * static_cast<double>(context.part.sizes.num_layers));
    MakeParts(context, branch);
  }

  void Forward(ResidualStream& stream, const LayerPass& pass) const override {
    at::Tensor read = stream.Normed(*mixer_norm_);
    if (residual_post_norm_) stream.Replace(read);
    stream.Add(pass.drop(LayerPass::kMixer, pass.mix(*mixer_, read)));
    read.reset();
    AddChannelMixer(stream, pass);
  }
  // x, the input of either norm.
  double ActivationsPerToken() const override { return num_branches() * static_cast<double>(dim_); }

 private:
  int64_t dim_;
  bool residual_post_norm_;
};

}  // namespace

BlockVariant PreNormVariant() {
  return VariantOf<PreNormOptions, PreNorm, Block, BlockContext>("pre_norm");
}

}  // namespace halflife::model
