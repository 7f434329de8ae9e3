// How each recipe decodes a token on a GPU: the kernels that one layer launches, so that no recipe
// silently loses its fast path. The code path is that of a GPU, on the CPU and with bf16 weights of
// zeros (ops::RowProductsEverywhere).
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "model/language_model.h"
#include "ops/linear/row_products.h"
#include "ops/torch/host_waits.h"
#include "support/paths.h"
#include "train/config/run_config.h"

namespace halflife::train {
namespace {

// Returns the number of launches of one decoding step.
int64_t CountLaunches(model::ModelConfig config, int64_t num_layers) {
  config.num_layers = num_layers;
  model::LanguageModel model(config);
  model::ParameterSet& parameters = model.parameters();
  for (int i = 0; i < parameters.size(); ++i) {
    const dist::ParamSpec& spec = parameters.specs()[i];
    parameters.Bind(i, at::zeros(spec.shape, spec.region == dist::Region::kCompute ? at::kBFloat16
                                                                                   : at::kFloat));
  }
  std::vector<model::MixerState> state = model.EmptyState(1).layers;
  const at::Tensor tokens = at::zeros({1}, at::kLong);
  const auto step = [&] {
    model.StepAt(model::SequenceSlice::OfToken(at::full({1, 1}, 1, at::kLong)), tokens, state);
  };
  step();  // Fills the caches.
  ops::HostWaits waits;
  step();
  int64_t launches = 0;
  for (const auto& [phase, counts] : waits.Take()) launches += counts.num_kernels();
  return launches;
}

// The launches per layer of recipes with one kind of layer, whose state has a constant size. Those
// of GLA: {sum, norm, projections}, {decay, state}, {gated norm, output}, {sum, norm, SwiGLU},
// {down}.
const std::map<std::string, int64_t> kDecodeLaunches = {{"d2d_124m", 35},
                                                        {"gated_delta_net_1.3b", 25},
                                                        {"gated_delta_net_340m", 25},
                                                        {"gla_1.3b", 5},
                                                        {"gla_340m", 5},
                                                        {"gla_7b", 5},
                                                        {"kda_1.3b", 28},
                                                        {"mamba2_1.3b", 13},
                                                        {"mamba_130m", 13},
                                                        {"quickstart", 5},
                                                        {"retention_340m", 6}};

TEST(DecodeLaunches, AreThoseOfTheTable) {
  const c10::InferenceMode inference;
  const ops::RowProductsEverywhere everywhere;
  std::map<std::string, int64_t> got;
  const std::filesystem::path folder = std::filesystem::path(test::kSourceDir) / "launch/recipes";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".textproto") continue;
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    model::ModelConfig config = LoadRunConfig(entry.path(), {}).model;
    config.vocab_size = 64;
    if (!config.hybrid.empty() || config.objective.name() != "next_token") continue;
    if (!model::LanguageModel(config).constant_state()) continue;
    got[name] = CountLaunches(config, 2) - CountLaunches(config, 1);
  }
  EXPECT_EQ(got, kDecodeLaunches);
}

}  // namespace
}  // namespace halflife::train
