#include "model/blocks/block.h"

#include "model/blocks/variants.h"

namespace halflife::model {
namespace {

std::vector<BlockVariant> BlockVariants() {
  return {
#define HL_BLOCK(Make) Make(),
#include "model/blocks/blocks.inc"
#undef HL_BLOCK
  };
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

void Block::AddChannelMixer(ResidualStream& stream, const LayerPass& pass) const {
  if (channel_norm_ == nullptr) return;
  stream.Add(pass.drop(LayerPass::kChannelMixer, (*channel_mixer_)(stream.Normed(*channel_norm_))));
}

void Block::CountParameters(ParameterCount& count) const {
  count.mixer += num_mixer_;
  count.mlp += num_channel_mixer_;
  count.norm += num_norm_;
}

}  // namespace halflife::model
