// Rotary positions for longer texts than those of training: position interpolation (Chen et al.,
// 2023), an NTK-aware base, YaRN (Peng et al., 2023). None has parameters: a model that was trained
// with plain rotary positions may be evaluated with them.
#include "model/positions/attention_variant.h"
#include "model/positions/frequencies.h"

namespace halflife::model {
namespace {

struct StretchOptions : PartOptions {
  double stretch = 1;
  std::vector<Option> Fields() override { return {{"stretch", &stretch}}; }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(stretch >= 1, "option stretch is ", stretch,
                     "; the longest text over that of training, at least 1, would work");
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
    problems.Require(slow > 0 && fast >= slow, "options fast ", fast, " and slow ", slow,
                     "; turns over the training length, fast >= slow > 0, would work");
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
