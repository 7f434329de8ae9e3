#include "eval/explanations.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "core/error.h"

namespace halflife::eval {

std::vector<LayerExplanation> ExplainLayers(const model::LanguageModel& model,
                                            const at::Tensor& tokens,
                                            const model::SequenceSlice& slice) {
  const at::NoGradGuard no_grad;
  std::vector<LayerExplanation> explanations;
  const auto explain = [&](int64_t layer, const model::Mixer& mixer, const model::MixerCall& call) {
    if (const auto* explained = dynamic_cast<const model::Explained*>(&mixer))
      explanations.push_back({.layer = layer, .pools = explained->Explain(call)});
  };
  model.Hidden(tokens, {.slice = &slice, .before_mixer = explain});
  HL_CHECK_AS(ExitCode::kUsage, !explanations.empty(), "no layer of ",
              model::MixerSummary(model.config()),
              " can explain which tokens it used. Use a model with layers of leap or fastformer.");
  return explanations;
}

std::vector<TokenShare> LargestTokens(const at::Tensor& shares, int64_t count) {
  const at::Tensor values = shares.to(at::kCPU, at::kDouble).contiguous();
  std::vector<TokenShare> tokens;
  for (int64_t i = 0; i < values.numel(); ++i)
    if (const double share = values.const_data_ptr<double>()[i]; share != 0)
      tokens.push_back({.token = i, .share = share});
  std::ranges::stable_sort(tokens, std::greater<>(), &TokenShare::share);
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(count)));
  return tokens;
}

}  // namespace halflife::eval
