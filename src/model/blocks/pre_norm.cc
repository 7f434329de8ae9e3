// x += mixer(norm x); x += channel_mixer(norm x): what nearly every language model since GPT-2 is
// made of.
#include <cmath>

#include "model/blocks/variants.h"

namespace halflife::model {
namespace {

struct PreNormOptions : OptionsOf<PreNormOptions> {
  bool scale_init_by_depth =
      false;  // the branches' last matrices start at 1 / sqrt(2 L), as GPT-2's
  std::vector<Option> Fields() override { return {{"scale_init_by_depth", &scale_init_by_depth}}; }
};

class PreNorm : public Block {
 public:
  PreNorm(const PreNormOptions& options, const BlockContext& context)
      : dim_(context.part.model_dim()) {
    PartContext branch = context.part;
    if (options.scale_init_by_depth)
      branch.output_init_scale =
          1 / std::sqrt(2.0 * static_cast<double>(context.part.sizes.num_layers));
    MakeParts(context, branch);
  }

  void Forward(ResidualStream& stream, const LayerPass& pass) const override {
    ForwardPreNorm(stream, pass);
  }
  // x before either norm.
  double ActivationsPerToken() const override { return 2 * static_cast<double>(dim_); }

 private:
  int64_t dim_;
};

}  // namespace

BlockVariant PreNormVariant() {
  return VariantOf<PreNormOptions, PreNorm, Block, BlockContext>("pre_norm");
}

}  // namespace halflife::model
