// halflife train: one run from a recipe, alone or as one rank under mpirun or srun.
#include <CLI/CLI.hpp>

#include <iostream>

#include "cli/command.h"
#include "cli/world.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "data/dataset.h"
#include "train/plan.h"
#include "train/stop_flags.h"
#include "train/trainer.h"

namespace halflife::cli {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  std::string run;
  std::string resume = "auto";
  std::vector<std::string> allow_change;
  bool steal_lock = false;
  bool dry_run = false;
};

ExitCode DryRun(train::RunConfig config, int world_size) {
  if (config.model.vocab_size == 0) {
    config.model.vocab_size = data::Dataset::Open(config.data.path).info().vocab_size;
  }
  const model::LanguageModel model(config.model);
  std::cout << train::PlanText(config, model, world_size);
  return ExitCode::kFinished;
}

ExitCode Run(const Options& options) {
  const ckpt::ResumeRequest resume = ckpt::ParseResume(options.resume);
  const std::filesystem::path run_dir =
      options.run.empty()
          ? std::filesystem::path("runs") / std::filesystem::path(options.config).stem()
          : std::filesystem::path(options.run);
  const train::RunConfig config = train::LoadRunConfig(options.config, options.overrides);
  if (options.dry_run) {
    const int world_size = dist::ReadLauncherEvidence().world_size;
    train::Validate(config, world_size);
    return DryRun(config, world_size);
  }
  train::StopFlags::InstallHandlers();
  return RunInWorld(config.comm_timeout_s, [&](dist::RankContext& context, auto& abort_dir) {
    context.RequireSameConfig(ToHex(HashBytes(train::ToText(config))));
    train::Validate(config, context.world_size());
    train::RunFolder folder =
        train::RunFolder::Open(run_dir, context, {.steal_lock = options.steal_lock});
    abort_dir = run_dir;
    train::Trainer trainer(config, std::move(folder), context,
                           {.resume = resume, .allow_change = options.allow_change});
    return trainer.Run();
  });
}

}  // namespace

void AddTrain(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("train", "Train a model from a recipe");
  command->footer(
      "Example:\n  mpirun -n 2 halflife train --config launch/recipes/quickstart.textproto \\\n"
      "    --set data.path=datasets/kjv --run runs/first");
  command->add_option("--config", options->config, "The recipe (protobuf text format)")->required();
  command
      ->add_option("--set", options->overrides,
                   "path=value, overrides the recipe; may be repeated, e.g. optimizer.lr=3e-4")
      ->take_all();
  command->add_option("--run", options->run, "The run's folder [runs/<recipe's name>]");
  command->add_option("--resume", options->resume, "auto, none, step=N or path=DIR")
      ->capture_default_str();
  command
      ->add_option("--allow-change", options->allow_change,
                   "A config field that may differ from the checkpoint's, e.g. optimizer.lr")
      ->take_all();
  command->add_flag("--steal-lock", options->steal_lock,
                    "Take over a run folder whose owner is dead");
  command->add_flag(
      "--dry-run", options->dry_run,
      "Print the resolved config, parameters, memory and tokens a step; train nothing");
  command->callback([=, &action] { action = [options] { return Run(*options); }; });
}

}  // namespace halflife::cli
