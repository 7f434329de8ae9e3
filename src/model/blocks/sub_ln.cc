// Sub-LN (Wang et al., 2022, "Foundation Transformers"): pre-norm, with a second norm inside each
// branch, before its last matrix. For a decoder of L layers, the initial values of the value,
// output and MLP matrices are multiplied by sqrt(ln(2 L)).
#include <cmath>

#include "model/blocks/variants.h"

namespace halflife::model {
namespace {

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
    stream.Add(pass.drop(LayerPass::kMixer, pass.mix(*mixer_, stream.Normed(*mixer_norm_))));
    AddChannelMixer(stream, pass);
  }
  // x (the input of either norm) and the input of each inner norm, which no other part counts.
  double ActivationsPerToken() const override {
    return 2 * num_branches() * static_cast<double>(dim_);
  }

 private:
  int64_t dim_;
};

}  // namespace

BlockVariant SubLnVariant() {
  return VariantOf<SubLnOptions, SubLn, Block, BlockContext>("sub_ln");
}

}  // namespace halflife::model
