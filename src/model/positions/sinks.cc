// Attention to the first keys of a document (sinks) and to the most recent ones (window). All
// distances stay in the range that training has covered.
//
// StreamingLLM (Xiao et al., 2024): positions count within the cache of sinks and window. Once the
// cache is full, the sinks keep their positions and the query is always at the end.
// LM-Infinite (Han et al., 2024): distances are limited to the window.
#include <ATen/ops/full_like.h>

#include "model/positions/attention_variant.h"

namespace halflife::model {
namespace {

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
