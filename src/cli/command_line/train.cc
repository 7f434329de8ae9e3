// halflife train: one run from a recipe, alone or as one rank under mpirun or srun.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {
namespace {

void AddInitOptions(CLI::App& command, TrainOptions& options) {
  CLI::Option* from = command.add_option("--init-from", options.init_from,
                                         "Start from these weights (a run, a step, a Hugging Face "
                                         "folder); a checkpoint in --run wins [none]");
  from->type_name("RUN");
  const auto more = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->needs(from);
  };
  more("--init-map", options.init_map,
       "A file of `pattern -> replacement` lines that rename [none]")
      ->type_name("FILE");
  more("--init-allow-missing", options.init_rules.allow_missing,
       "Tensors that keep their initial value; may be repeated")
      ->type_name("GLOB");
  more("--init-allow-unexpected", options.init_rules.allow_unexpected,
       "Tensors of the source that are left out; may be repeated")
      ->type_name("GLOB");
  more("--init-new-rows", options.init_new_rows,
       "Of a larger vocabulary: refuse, the mean row, or initial values")
      ->check(CLI::IsMember({"refuse", "mean", "init"}))
      ->capture_default_str();
}

}  // namespace

void AddTrain(CLI::App& app, Request& request) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "Train a model from a recipe");
  DescribeUse(
      *command,
      {.notes = "A run that was stopped goes on with the same command. Every name that --set takes "
                "is in proto/halflife/run_config.proto; `halflife recipe` prints them with their "
                "values.",
       .examples =
           {"halflife train --config launch/recipes/quickstart.textproto --set "
            "data.path=datasets/mine --run runs/first",
            "launch/mpirun/run.sh --ranks 2 -- halflife train --config "
            "launch/recipes/quickstart.textproto --set optimizer.lr=3e-4 --run runs/second"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kTimeout,
                      ExitCode::kPeerLost, ExitCode::kNonFinite, ExitCode::kCheckpointIo,
                      ExitCode::kRequeue, ExitCode::kNoUsableCheckpoint, ExitCode::kInterrupted}});
  command->add_option("--config", options->config, "The recipe (protobuf text format)")
      ->type_name("RECIPE")
      ->required();
  command
      ->add_option("--set", options->overrides,
                   "Overrides a field of the recipe, e.g. optimizer.lr=3e-4; may be repeated")
      ->type_name("NAME=VALUE")
      ->take_all();
  command->add_flag("--dry-run", options->dry_run,
                    "Print the resolved config with all defaults, parameters, memory and whether "
                    "it fits, tokens, epochs; train nothing. Needs no dataset");

  command->option_defaults()->group("Run folder");
  command->add_option("--run", options->run, "The run's folder [runs/ and the recipe's name]")
      ->type_name("RUN");
  command->add_option("--resume", options->resume, "Where to go on: auto, none, step=N or path=DIR")
      ->capture_default_str();
  command
      ->add_option("--allow-change", options->allow_change,
                   "A config field that may differ from the checkpoint's, e.g. optimizer.lr; may "
                   "be repeated")
      ->type_name("NAME")
      ->take_all();
  command->add_flag("--steal-lock", options->steal_lock,
                    "Take over a run folder whose owner is dead");

  command->option_defaults()->group("Start from other weights");
  AddInitOptions(*command, *options);
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
