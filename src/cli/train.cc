// halflife train: one run from a recipe, alone or as one rank under mpirun or srun.
#include <iostream>
#include <optional>

#include "cli/model_source.h"
#include "cli/readable_text.h"
#include "cli/run.h"
#include "cli/train_process.h"
#include "cli/world.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "data/dataset.h"
#include "data/token_agreement.h"
#include "data/utf8.h"
#include "infer/generator.h"
#include "train/config/plan.h"
#include "train/loop/stop_flags.h"
#include "train/loop/trainer.h"

namespace halflife::cli {
namespace {

const std::map<std::string, train::RowGrowth> kRowGrowth = {{"refuse", train::RowGrowth::kRefuse},
                                                            {"mean", train::RowGrowth::kMean},
                                                            {"init", train::RowGrowth::kInit}};

train::WarmStartRules InitRules(const TrainOptions& options) {
  train::WarmStartRules rules = options.init_rules;
  if (!options.init_map.empty()) rules.renames = train::ReadRenames(options.init_map);
  rules.new_rows = kRowGrowth.at(options.init_new_rows);
  return rules;
}

ExitCode DryRun(train::RunConfig config) {
  const LauncherEvidence evidence = ReadLauncherEvidence();
  std::string& path = config.data.path;
  std::error_code ignored;
  std::optional<data::DatasetInfo> dataset;
  if (std::filesystem::exists(path, ignored)) dataset = data::Dataset::Open(path).info();
  if (train::CompleteForPlan(config, dataset ? &*dataset : nullptr, evidence.world_size)) {
    std::cout << "# there is no dataset" << (path.empty() ? "" : " " + path) << ": a vocabulary of "
              << config.model.vocab_size << " is assumed (--set model.vocab_size=N for another)\n";
  }
  if (path.empty()) path = "DATASET";
  train::PlanScene scene = train::SceneHere(config, evidence.world_size, evidence.local_size);
  scene.train_tokens = dataset ? dataset->train.num_tokens : 0;
  const model::LanguageModel model(config.model);
  train::RequireRows(config, model, dataset ? &*dataset : nullptr);
  std::cout << train::PlanText(config, model, scene);
  return ExitCode::kFinished;
}

// Rows of an embedding that belong to other text train, but from noise: legal, and seldom meant.
void WarnOfOtherTokens(const std::string& init_from, const std::string& dataset) {
  const auto own = OpenTokenizer(init_from);
  if (own == nullptr) return;
  const data::Dataset data = data::Dataset::Open(dataset);
  if (data.info().has_rows()) return;
  const auto theirs = data.LoadTokenizer();
  const auto difference = data::FindDifference(*theirs, *own);
  if (!difference) return;
  HL_WARN("train", "--init-from ", init_from, " was trained with another tokenizer: token ",
          difference->id, " stands for '", difference->left, "' in the dataset, for '",
          difference->right, "' there; `halflife prepare --tokenizer` takes a tokenizer's folder");
}

// Continues eval.sample_prompt, the same draws every time; null where there is none.
std::function<std::string(const model::LanguageModel&)> SampleText(const train::RunConfig& config) {
  const std::string prompt = config.eval.sample_prompt;
  if (prompt.empty()) return nullptr;
  const std::shared_ptr<const data::Tokenizer> tokenizer =
      data::Dataset::Open(config.data.path).LoadTokenizer();
  CheckReadable("eval.sample_prompt", prompt, *tokenizer, ExitCode::kUsage);
  const infer::GenerateConfig generate = {.max_tokens = config.eval.sample_tokens,
                                          .eos_id = tokenizer->eos_id(),
                                          .vocab_size = tokenizer->vocab_size(),
                                          .sampler = {.temperature = 0.8}};
  return [=](const model::LanguageModel& model) {
    data::StreamDecoder decoder(*tokenizer);
    std::string text = prompt;
    infer::Generate(model, tokenizer->Encode(prompt), generate, [&](int32_t id) {
      text += decoder.Push(id);
      return true;
    });
    return data::ReplaceInvalidUtf8(text + decoder.Finish());  // TensorBoard takes nothing else
  };
}

}  // namespace

ExitCode Run(const TrainOptions& options) {
  const ckpt::ResumeRequest resume = ckpt::ParseResume(options.resume);
  const std::filesystem::path run_dir =
      options.run.empty()
          ? std::filesystem::path("runs") / std::filesystem::path(options.config).stem()
          : std::filesystem::path(options.run);
  const train::RunConfig config = train::LoadRunConfig(options.config, options.overrides);
  if (options.dry_run) return DryRun(config);
  const train::WarmStartRules init_rules = InitRules(options);
  const std::unique_ptr<ckpt::WeightSource> init_from =
      options.init_from.empty() ? nullptr : OpenWeights(options.init_from);
  train::StopFlags::InstallHandlers();
  return RunInWorld(config.comm_timeout_s, [&](dist::RankContext& context, auto& abort_dir) {
    context.RequireSameConfig(ToHex(HashBytes(train::ToText(config))));
    train::Validate(config, context.world_size());
    const auto sample_text = SampleText(config);
    if (init_from != nullptr && context.rank() == 0)
      WarnOfOtherTokens(options.init_from, config.data.path);
    train::RunFolder folder =
        train::RunFolder::Open(run_dir, context, {.steal_lock = options.steal_lock});
    // A start that fails takes a new folder with it, so nobody's words may hold it open.
    if (!folder.is_new()) abort_dir = run_dir;
    const Stopwatch clock;
    const Device device = PrepareTrainProcess(config, folder, context);
    train::Trainer trainer(config, device, std::move(folder), context,
                           {.resume = resume,
                            .allow_change = options.allow_change,
                            .init_from = init_from.get(),
                            .init_rules = init_rules,
                            .sample_text = sample_text,
                            .clock = clock});
    abort_dir = run_dir;
    return trainer.Run();
  });
}

}  // namespace halflife::cli
