#include "train/config/plan.h"

#include <algorithm>
#include <map>
#include <string>

#include "core/error.h"
#include "core/human.h"
#include "train/config/epochs.h"

namespace halflife::train {

int NumRowGroups(const RunConfig& config, int world_size) {
  return std::max(world_size / config.parallel.sp, 1);
}

int64_t NumMicroBatches(const RunConfig& config, int world_size) {
  return config.train.global_batch / (config.train.micro_batch * NumRowGroups(config, world_size));
}

model::Recompute RecomputeOf(const RunConfig& config) {
  static const std::map<std::string, model::Recompute> kWays = {
      {"none", model::Recompute::kNone},
      {"mixer", model::Recompute::kMixer},
      {"block", model::Recompute::kBlock}};
  return kWays.at(config.train.recompute);
}

std::string PlanSummary(const RunConfig& config, const model::LanguageModel& model,
                        int world_size) {
  return Concat(model::MixerSummary(config.model), ", ", config.model.num_layers, " layers x ",
                config.model.model_dim, ", ",
                HumanCount(static_cast<double>(model.CountParameters().total())), " parameters, ",
                config.train.global_batch, " x ", config.data.seq_len, " tokens a step on ",
                Counted(world_size, "rank"),
                config.parallel.sp > 1 ? Concat(", ", config.parallel.sp, " to a row") : "", ", ",
                config.train.steps, " steps");
}

void RequireRows(const RunConfig& config, const model::LanguageModel& model,
                 const data::DatasetInfo* dataset) {
  const int64_t most = model.max_positions();
  HL_CHECK_AS(ExitCode::kUsage, most == 0 || config.data.seq_len <= most, "data.seq_len is ",
              config.data.seq_len, ", beyond ", model.LimitOfPositions(),
              "; a data.seq_len of at most ", most, " would work");
  const std::string whole = model.LayerOfWholeRows();
  HL_CHECK_AS(ExitCode::kUsage, config.parallel.sp == 1 || whole.empty(), "parallel.sp ",
              config.parallel.sp, ": ", whole,
              " mixes whole rows and cannot have one on several ranks; parallel.sp 1, or a mixer "
              "with a state that passes on, e.g. gla, would work");
  HL_CHECK_AS(ExitCode::kUsage, config.parallel.sp == 1 || !model.objective().classifier(),
              "parallel.sp ", config.parallel.sp, ": objective ", config.model.objective.name(),
              " reads whole documents, and no rank would have one; parallel.sp 1 would work");
  if (dataset == nullptr) return;
  const std::string layer = model.LayerOfOneDocument();
  HL_CHECK_AS(
      ExitCode::kUsage, !dataset->packs_documents() || layer.empty(), layer,
      " mixes whole rows, and rows of text are packed with several documents; ",
      dataset->has_rows() ? "" : "text that is one document (`prepare --documents file`), or ",
      "a mixer whose state restarts with a document, e.g. gla, would work");
  HL_CHECK_AS(ExitCode::kUsage, config.eval.split != "test" || dataset->has_rows(),
              "eval.split is 'test', and text has no test split; eval.split 'validation' would "
              "work");
}

bool CompleteForPlan(RunConfig& config, const data::DatasetInfo* dataset, int world_size) {
  constexpr int64_t kUsualVocabulary = 32000;
  const bool names_none = config.model.vocab_size == 0;
  if (names_none)
    config.model.vocab_size = dataset != nullptr ? dataset->vocab_size : kUsualVocabulary;
  RunConfig complete = config;
  if (complete.data.path.empty()) complete.data.path = "DATASET";  // all that may be missing
  Validate(complete, std::max(world_size, config.parallel.sp));
  if (dataset != nullptr) ResolveSteps(config, *dataset);
  return names_none && dataset == nullptr;
}

RunConfig WithDerivedOptions(RunConfig config) {
  config.model = model::Resolved(config.model);
  return config;
}

}  // namespace halflife::train
