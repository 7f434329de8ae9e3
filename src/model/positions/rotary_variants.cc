#include "model/positions/rotary_variants.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "model/positions/variants.h"
#include "ops/rows/rotary.h"
#include "ops/softmax_attention/softmax_attention.h"

namespace halflife::model {
namespace {

double Usual(int64_t pair, int64_t dim, double base) {
  return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
}

}  // namespace

std::vector<double> InterpolatedFrequencies(int64_t dim, double base, double factor) {
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < (dim + 1) / 2; ++pair)
    frequencies.push_back(Usual(pair, dim, base) / factor);
  return frequencies;
}

std::vector<double> NtkAwareFrequencies(int64_t dim, double base, double factor) {
  const auto width = static_cast<double>(dim);
  return ops::RotaryFrequencies(dim, dim > 2 ? base * std::pow(factor, width / (width - 2)) : base);
}

YarnRamp YarnRampOf(int64_t dim, double base, const YarnConfig& config) {
  const auto width = static_cast<double>(dim);
  // The pair that makes this number of turns over the training length.
  const auto pair_of = [&](double turns) {
    return width * std::log(static_cast<double>(config.length) / (2 * std::numbers::pi * turns)) /
           (2 * std::log(base));
  };
  const double first = pair_of(config.fast), last = pair_of(config.slow);
  return {.first = std::max(0.0, config.truncate ? std::floor(first) : first),
          .last = std::min(width - 1, config.truncate ? std::ceil(last) : last)};
}

std::vector<double> YarnFrequencies(int64_t dim, double base, const YarnConfig& config) {
  const YarnRamp ramp = YarnRampOf(dim, base, config);
  // The minimum replaces an empty ramp.
  const double width = std::max(ramp.last - ramp.first, 0.001);
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < (dim + 1) / 2; ++pair) {
    const double kept = 1 - std::clamp((static_cast<double>(pair) - ramp.first) / width, 0.0, 1.0);
    const double usual = Usual(pair, dim, base);
    frequencies.push_back(kept * usual + (1 - kept) * usual / config.factor);
  }
  return frequencies;
}

double YarnFactor(double factor) { return 0.1 * std::log(factor) + 1; }

std::vector<double> Llama3Frequencies(int64_t dim, double base, const Llama3Config& config) {
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < (dim + 1) / 2; ++pair) {
    const double usual = Usual(pair, dim, base);
    const double turns = static_cast<double>(config.length) * usual / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - config.slow) / (config.fast - config.slow), 0.0, 1.0);
    frequencies.push_back(usual * ((1 - kept) / config.factor + kept));
  }
  return frequencies;
}

namespace {

// Rotary positions for texts that are longer than those of training: position interpolation (Chen
// et al., 2023), NTK-aware bases, YaRN (Peng et al., 2023), and the scaling of Llama 3.1 (Dubey et
// al., 2024). They have no parameters, so a model that was trained with plain rotary positions can
// be evaluated with them.
struct StretchOptions : PartOptions {
  double factor = 1;
  std::vector<Option> Fields() override { return {{"factor", &factor}}; }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(factor >= 1, "option factor is ", factor,
                     ". Use the longest text length divided by the training length, at least 1.");
  }
};

// A factor below 1 turns faster than in training. transformers has it, too.
struct InterpolatedOptions : OptionsOf<InterpolatedOptions, StretchOptions> {
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(factor > 0 && std::isfinite(factor), "option factor is ", factor,
                     ". Use the longest text length divided by the training length, above 0.");
  }
};

class Interpolated : public RotaryPositions {
 public:
  Interpolated(const InterpolatedOptions& options, const AttentionLayer& layer)
      : RotaryPositions(InterpolatedFrequencies(Rotating(layer).rotated_dim(), layer.rope_theta,
                                                options.factor)) {}
};

struct NtkAwareOptions : OptionsOf<NtkAwareOptions, StretchOptions> {};

class NtkAware : public RotaryPositions {
 public:
  NtkAware(const NtkAwareOptions& options, const AttentionLayer& layer)
      : RotaryPositions(
            NtkAwareFrequencies(Rotating(layer).rotated_dim(), layer.rope_theta, options.factor)) {}
};

struct YarnOptions : OptionsOf<YarnOptions, StretchOptions> {
  int64_t length = 1024;
  double fast = 32, slow = 1;
  bool truncate = true;
  double attention_factor = 0;  // The factor of cos and sin. 0: YarnFactor.
  std::vector<Option> Fields() override {
    return {{"factor", &factor}, {"length", &length},     {"fast", &fast},
            {"slow", &slow},     {"truncate", &truncate}, {"attention_factor", &attention_factor}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    StretchOptions::Resolve(sizes, problems);
    problems.Require(slow > 0 && fast >= slow, "options fast and slow are ", fast, " and ", slow,
                     " turns over the training length. Use fast >= slow > 0.");
    problems.Require(attention_factor >= 0 && std::isfinite(attention_factor),
                     "option attention_factor is ", attention_factor,
                     ". Use a number above 0, or 0 for 0.1 ln(factor) + 1.");
  }
};

class Yarn : public RotaryPositions {
 public:
  Yarn(const YarnOptions& options, const AttentionLayer& layer)
      : RotaryPositions(
            YarnFrequencies(Rotating(layer).rotated_dim(), layer.rope_theta,
                            {.factor = options.factor,
                             .length = options.length,
                             .fast = options.fast,
                             .slow = options.slow,
                             .truncate = options.truncate}),
            options.attention_factor > 0 ? options.attention_factor : YarnFactor(options.factor)) {}
};

struct Llama3Options : OptionsOf<Llama3Options, StretchOptions> {
  int64_t length = 8192;
  double fast = 4, slow = 1;
  std::vector<Option> Fields() override {
    return {{"factor", &factor}, {"length", &length}, {"fast", &fast}, {"slow", &slow}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    StretchOptions::Resolve(sizes, problems);
    problems.Require(slow > 0 && fast > slow, "options fast and slow are ", fast, " and ", slow,
                     " turns over the training length. Use fast > slow > 0.");
  }
};

class Llama3 : public RotaryPositions {
 public:
  Llama3(const Llama3Options& options, const AttentionLayer& layer)
      : RotaryPositions(Llama3Frequencies(Rotating(layer).rotated_dim(), layer.rope_theta,
                                          {.factor = options.factor,
                                           .length = options.length,
                                           .fast = options.fast,
                                           .slow = options.slow})) {}
};

}  // namespace

PositionsVariant InterpolatedPositionsVariant() {
  return AttentionVariantOf<InterpolatedOptions, Interpolated>("interpolated");
}
PositionsVariant NtkAwarePositionsVariant() {
  return AttentionVariantOf<NtkAwareOptions, NtkAware>("ntk_aware");
}
PositionsVariant YarnPositionsVariant() { return AttentionVariantOf<YarnOptions, Yarn>("yarn"); }
PositionsVariant Llama3PositionsVariant() {
  return AttentionVariantOf<Llama3Options, Llama3>("llama3");
}

namespace {

// xPos (Sun et al., 2022, "A length-extrapolatable transformer"): rotary positions whose products
// also decay with the distance. Each pair has its own rate, and pairs that rotate faster decay
// faster. The product of pair j of H is multiplied by ((j/H + gamma) / (1 + gamma))^(1 /
// scale_base) per token. gamma and scale_base must be chosen together.
struct XposOptions : OptionsOf<XposOptions> {
  double gamma = 0.4, scale_base = 512;
  std::vector<Option> Fields() override { return {{"gamma", &gamma}, {"scale_base", &scale_base}}; }
  // Returns the log decay of a pair per token. `part` is the share of the pairs that rotate faster.
  double Rate(double part) const { return std::log((part + gamma) / (1 + gamma)) / scale_base; }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(gamma > 0, "option gamma is ", gamma, ". Use a number above 0.");
    problems.Require(scale_base > 0, "option scale_base is ", scale_base,
                     ". Use a number of tokens above 0.");
    const double least = Rate(0) / ops::kFastestDecay * scale_base;
    problems.Require(gamma <= 0 || scale_base <= 0 || scale_base >= least, "option scale_base is ",
                     scale_base, " with gamma ", gamma, ", so the fastest pair keeps only ",
                     std::exp(Rate(0)), " of a product per token. Use a scale_base of at least ",
                     least, ".");
  }
};

class Xpos : public RotaryPositions {
 public:
  Xpos(const XposOptions& options, const AttentionLayer& layer) : RotaryPositions(layer) {
    HL_CHECK_AS(ExitCode::kUsage, layer.rotated_dim() == layer.head_dim,
                "positions: xpos needs layers that rotate whole heads, but this one rotates ",
                layer.rotated_dim(), " of ", layer.head_dim,
                " channels. Use partial_rotary_factor 1, or other positions.");
    const int64_t half = layer.head_dim / 2;
    for (int64_t channel = 0; channel < layer.head_dim; ++channel) {
      const double part = static_cast<double>(channel % half) / static_cast<double>(half);
      rates_.push_back(options.Rate(part));
    }
  }
  std::vector<double> decay_rates() const override { return rates_; }

 private:
  std::vector<double> rates_;
};

}  // namespace

PositionsVariant XposPositionsVariant() { return AttentionVariantOf<XposOptions, Xpos>("xpos"); }

namespace {

// ReRoPE (Su, 2023): distances of `window` or more count as `window`. In Leaky ReRoPE they count as
// window + (distance - window) / leak. Such pairs use a separate query and key. The key is rotated
// by its position divided by leak (or not rotated without leak), and the query by the remaining
// angle.
struct ReropeOptions : OptionsOf<ReropeOptions> {
  int64_t window = 512, leak = 0;  // leak 0: no leak.
  std::vector<Option> Fields() override {
    return {{"window", &window}, {"leak", &leak, {.min = 0}}};
  }
};

class Rerope : public RotaryPositions {
 public:
  Rerope(const ReropeOptions& options, const AttentionLayer& layer)
      : RotaryPositions(layer), options_(options) {
    if (options.leak > 0)
      leaking_ = InterpolatedFrequencies(layer.rotated_dim(), layer.rope_theta,
                                         static_cast<double>(options.leak));
  }
  void Encode(AttentionHeads& heads, const at::Tensor& positions,
              ops::RotaryTables& tables) const override {
    if (options_.leak == 0) {
      heads.far_q = Rotate(heads.q, at::full_like(positions, options_.window), frequencies());
      heads.far_k = heads.k;
    } else {
      // (i + (leak - 1) window) / leak - j / leak = window + (i - j - window) / leak
      const int64_t shift = (options_.leak - 1) * options_.window;
      heads.far_q = Rotate(heads.q, positions + shift, leaking_);
      heads.far_k = Rotate(heads.k, positions, leaking_);
    }
    RotaryPositions::Encode(heads, positions, tables);
  }
  int64_t far_from() const override { return options_.window; }
  bool has_far_keys() const override { return true; }

 private:
  ReropeOptions options_;
  std::vector<double> leaking_;
};

}  // namespace

PositionsVariant ReropePositionsVariant() {
  return AttentionVariantOf<ReropeOptions, Rerope>("rerope");
}

namespace {

// Attention to the first keys of a document (sinks) and to the most recent ones (window). All
// distances stay in the range that training has covered.
//
// StreamingLLM (Xiao et al., 2024): positions count within the cache of sinks and window. Once the
// cache is full, the sinks keep their positions and the query is always at the end.
// LM-Infinite (Han et al., 2024): distances are limited to the window.
struct SinksOptions : PartOptions {
  int64_t sinks = 4, window = 1024;
  std::vector<Option> Fields() override {
    return {{"sinks", &sinks, {.min = 0}}, {"window", &window}};
  }
};

class SinksAndWindow : public RotaryPositions {
 public:
  SinksAndWindow(const SinksOptions& options, const AttentionLayer& layer)
      : RotaryPositions(layer), sinks_(options.sinks), window_(options.window) {}
  int64_t far_from() const override { return window_; }
  ops::KeyPattern pattern() const override { return {.window = window_, .sinks = sinks_}; }

 protected:
  int64_t sinks() const { return sinks_; }
  int64_t window() const { return window_; }

 private:
  int64_t sinks_, window_;
};

struct StreamingOptions : OptionsOf<StreamingOptions, SinksOptions> {};

class StreamingLlm : public SinksAndWindow {
 public:
  StreamingLlm(const StreamingOptions& options, const AttentionLayer& layer)
      : SinksAndWindow(options, layer) {}
  void Encode(AttentionHeads& heads, const at::Tensor& positions,
              ops::RotaryTables& tables) const override {
    const int64_t last = sinks() + window() - 1;  // Last position in a full cache.
    heads.far_q = Rotate(heads.q, positions.clamp_max(last), frequencies());
    RotaryPositions::Encode(heads, positions, tables);
  }
};

struct LmInfiniteOptions : OptionsOf<LmInfiniteOptions, SinksOptions> {};

class LmInfinite : public SinksAndWindow {
 public:
  LmInfinite(const LmInfiniteOptions& options, const AttentionLayer& layer)
      : SinksAndWindow(options, layer) {}
  void Encode(AttentionHeads& heads, const at::Tensor& positions,
              ops::RotaryTables& tables) const override {
    heads.far_q = Rotate(heads.q, at::full_like(positions, window()), frequencies());
    heads.far_k = heads.k;
    RotaryPositions::Encode(heads, positions, tables);
  }
  bool has_far_keys() const override { return true; }
};

}  // namespace

PositionsVariant StreamingLlmPositionsVariant() {
  return AttentionVariantOf<StreamingOptions, StreamingLlm>("streaming_llm");
}
PositionsVariant LmInfinitePositionsVariant() {
  return AttentionVariantOf<LmInfiniteOptions, LmInfinite>("lm_infinite");
}

}  // namespace halflife::model
