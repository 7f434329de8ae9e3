// Post-norm (Vaswani et al., 2017): x = norm(alpha x + mixer(x)); x = norm(alpha x +
// channel_mixer(x)), with alpha = 1.
// DeepNorm (Wang et al., 2022), for a decoder of L layers: alpha = (2 L)^(1/4), and the initial
// values of the value, output and MLP matrices are multiplied by (8 L)^(-1/4).
#include <ATen/TensorOperators.h>

#include <cmath>

#include "model/blocks/variants.h"

namespace halflife::model {
namespace {

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
    join(*channel_norm_, pass.drop(LayerPass::kChannelMixer, (*channel_mixer_)(stream.Sum())));
  }
  // The input of either norm.
  double ActivationsPerToken() const override { return num_branches() * static_cast<double>(dim_); }
  bool needs_final_norm() const override { return false; }

 private:
  int64_t dim_;
  double alpha_ = 1;
};

}  // namespace

BlockVariant PostNormVariant() {
  return VariantOf<PostNormOptions, PostNorm, Block, BlockContext>("post_norm");
}

}  // namespace halflife::model
