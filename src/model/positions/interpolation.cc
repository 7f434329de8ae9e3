// Rotary positions for texts that are longer than those of training: position interpolation (Chen
// et al., 2023), NTK-aware bases, and YaRN (Peng et al., 2023). They have no parameters, so a model
// that was trained with plain rotary positions can be evaluated with them.
#include "model/positions/attention_variant.h"
#include "model/positions/frequencies.h"

namespace halflife::model {
namespace {

struct StretchOptions : PartOptions {
  double stretch = 1;
  std::vector<Option> Fields() override { return {{"stretch", &stretch}}; }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(stretch >= 1, "option stretch is ", stretch,
                     ". Use the longest text length divided by the training length, at least 1.");
  }
};

struct InterpolatedOptions : OptionsOf<InterpolatedOptions, StretchOptions> {};

class Interpolated : public RotaryPositions {
 public:
  Interpolated(const InterpolatedOptions& options, const AttentionLayer& layer)
      : RotaryPositions(
            InterpolatedFrequencies(Rotating(layer).head_dim, layer.rope_theta, options.stretch)) {}
};

struct NtkAwareOptions : OptionsOf<NtkAwareOptions, StretchOptions> {};

class NtkAware : public RotaryPositions {
 public:
  NtkAware(const NtkAwareOptions& options, const AttentionLayer& layer)
      : RotaryPositions(
            NtkAwareFrequencies(Rotating(layer).head_dim, layer.rope_theta, options.stretch)) {}
};

struct YarnOptions : OptionsOf<YarnOptions, StretchOptions> {
  int64_t length = 1024;
  double fast = 32, slow = 1;
  std::vector<Option> Fields() override {
    return {{"stretch", &stretch}, {"length", &length}, {"fast", &fast}, {"slow", &slow}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    StretchOptions::Resolve(sizes, problems);
    problems.Require(slow > 0 && fast >= slow, "options fast and slow are ", fast, " and ", slow,
                     " turns over the training length. Use fast >= slow > 0.");
  }
};

class Yarn : public RotaryPositions {
 public:
  Yarn(const YarnOptions& options, const AttentionLayer& layer)
      : RotaryPositions(YarnFrequencies(Rotating(layer).head_dim, layer.rope_theta,
                                        {.stretch = options.stretch,
                                         .length = options.length,
                                         .fast = options.fast,
                                         .slow = options.slow}),
                        YarnFactor(options.stretch)) {}
};

}  // namespace

PositionsVariant InterpolatedPositionsVariant() {
  return AttentionVariantOf<InterpolatedOptions, Interpolated>("interpolated");
}
PositionsVariant NtkAwarePositionsVariant() {
  return AttentionVariantOf<NtkAwareOptions, NtkAware>("ntk_aware");
}
PositionsVariant YarnPositionsVariant() { return AttentionVariantOf<YarnOptions, Yarn>("yarn"); }

}  // namespace halflife::model
