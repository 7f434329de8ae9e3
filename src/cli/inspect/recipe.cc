#include <nlohmann/json.hpp>
#include <optional>

#include "cli/inspect/artifact.h"
#include "model/model_cost.h"
#include "train/config/plan.h"
#include "train/plan/memory_plan.h"

namespace halflife::cli::inspect {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Recipe {
  train::RunConfig config;
  train::PlanTarget target;  // The smallest world: the ranks that share one row.
  bool knows_steps() const { return config.train.max_epochs == 0 || target.train_tokens > 0; }
};

Recipe Load(const fs::path& path) {
  Recipe recipe{.config = train::LoadRunConfig(path, {})};
  train::RunConfig& config = recipe.config;
  std::optional<data::DatasetInfo> dataset;
  const bool asks = config.model.vocab_size == 0 || config.train.max_epochs > 0;
  if (asks) dataset = train::FindTrainingInfo(config);
  recipe.target.assumed_vocabulary =
      train::CompleteForPlan(config, dataset ? &*dataset : nullptr, 1);
  recipe.target.world_size = config.parallel.row_ranks();
  if (dataset) {
    recipe.target.train_tokens = dataset->train.num_tokens;
    recipe.target.order = train::OrderOf(config, *dataset);
  }
  return recipe;
}

}  // namespace

bool IsRecipe(const fs::path& path) {
  std::error_code ignored;
  return path.extension() == ".textproto" && fs::is_regular_file(path, ignored);
}

Json DescribeRecipe(const fs::path& path) {
  const Recipe recipe = Load(path);
  const train::RunConfig& config = recipe.config;
  const model::LanguageModel model(config.model);
  const model::ParameterCount count = model.CountParameters();
  const train::MemoryPlan memory = train::PlanMemory(config, model, recipe.target.world_size);
  const int64_t tokens = config.train.global_batch * config.data.seq_len;
  const model::FlopCount flops = model::ModelCost(model, config.data.seq_len).FlopsPerToken();
  Json steps = nullptr, run_tokens = nullptr;
  if (recipe.knows_steps()) {
    steps = config.train.steps;
    run_tokens = train::TokensOfRun(config, recipe.target);
  }
  return {{"mixer", model::MixerSummary(config.model)},
          {"layers", config.model.num_layers},
          {"model_dim", config.model.model_dim},
          {"vocab_size", config.model.vocab_size},
          {"vocab_assumed", recipe.target.assumed_vocabulary},
          {"parameters",
           {{"embedding", count.embedding},
            {"head", config.model.head.tied ? 0 : count.head},
            {"mixers", count.mixer},
            {"mlps", count.mlp},
            {"norms", count.norm},
            {"total", count.total()}}},
          {"memory_of_one_rank",
           {{"main_and_optimizer_bytes", static_cast<uint64_t>(memory.main_and_optimizer)},
            {"gradient_bytes", static_cast<uint64_t>(memory.gradients)},
            {"compute_copy_bytes", static_cast<uint64_t>(memory.compute_copy)},
            {"frozen_bytes", static_cast<uint64_t>(memory.frozen)},
            {"gathered_bytes", static_cast<uint64_t>(memory.gathered)},
            {"activation_bytes", static_cast<uint64_t>(memory.activations)},
            {"loss_bytes", static_cast<uint64_t>(memory.loss)},
            {"workspace_bytes", static_cast<uint64_t>(memory.workspace)},
            {"matrix_bytes", static_cast<uint64_t>(memory.matrices)},
            {"share_bytes", static_cast<uint64_t>(memory.shares)},
            {"state_bytes", static_cast<uint64_t>(memory.states)},
            {"saved_copy_bytes", static_cast<uint64_t>(memory.saved_copy)},
            {"total_bytes", static_cast<uint64_t>(memory.total())}}},
          {"steps", steps},
          {"tokens_per_step", tokens},
          {"tokens", run_tokens},
          {"flops_per_token", 3 * (flops.matmul + flops.mixing)},
          {"config_text", train::ToText(config)}};
}

std::string RecipeText(const fs::path& path) {
  const Recipe recipe = Load(path);
  return train::PlanText(recipe.config, model::LanguageModel(recipe.config.model), recipe.target);
}

}  // namespace halflife::cli::inspect
