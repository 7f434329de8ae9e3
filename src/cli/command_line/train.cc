// halflife train: one run from a recipe, alone or as one rank under mpirun or srun.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/modes.h"
#include "cli/command_line/value_checks.h"

namespace halflife::cli {
namespace {

constexpr char kInitGroup[] = "Start from other weights";

void AddInitOptions(CLI::App& command, TrainOptions& options) {
  command.option_defaults()->group(kInitGroup);
  command
      .add_option("--init-from", options.init_from,
                  "Start from these weights (a run, RUN@best, a step, a Hugging Face folder); a "
                  "checkpoint in "
                  "--run wins [none]")
      ->type_name("RUN");
  command
      .add_option("--init-map", options.init_map,
                  "A file of `pattern -> replacement` lines that rename [none]")
      ->type_name("FILE");
  command
      .add_option("--init-allow-missing", options.init_rules.allow_missing,
                  "Tensors that keep their initial value; may be repeated")
      ->type_name("GLOB");
  command
      .add_option("--init-allow-unexpected", options.init_rules.allow_unexpected,
                  "Tensors of the source that are left out; may be repeated")
      ->type_name("GLOB");
  command
      .add_option("--init-new-rows", options.init_new_rows,
                  "Of a larger vocabulary: refuse, the mean row, or initial values")
      ->check(OneOf({"refuse", "mean", "init"}))
      ->capture_default_str();
}

Modes TrainModes(const CLI::App& command) {
  Modes modes(command);
  modes.OnlyWith("--trace", {"--trace-steps"});
  modes.OnlyWith("--plan", {"--json"});
  modes.OnlyWith("--dry-run", {"--plan"});
  modes.OnlyWith("--init-from", modes.Group(kInitGroup));
  return modes;
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
       .examples = {"halflife train --config launch/recipes/quickstart.textproto --set "
                    "data.path=datasets/mine --run runs/first",
                    "launch/mpirun/run.sh --ranks 2 -- halflife train --config "
                    "launch/recipes/quickstart.textproto --set optimizer.lr=3e-4 --run runs/second",
                    "halflife train --config launch/recipes/gla_340m.textproto --dry-run --plan "
                    "nodes=4,gpus=8,zero=1"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kTimeout,
                      ExitCode::kPeerLost, ExitCode::kNonFinite, ExitCode::kCheckpointIo,
                      ExitCode::kRequeue, ExitCode::kNoUsableCheckpoint, ExitCode::kInterrupted}});
  command
      ->add_option(
          "--config", options->configs,
          "The recipe (protobuf text format); may be repeated: a later file changes fields "
          "of the earlier ones")
      ->type_name("RECIPE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all()
      ->required();
  command
      ->add_option("--set", options->overrides,
                   "Overrides a field of the recipe, e.g. optimizer.lr=3e-4; may be repeated")
      ->type_name("NAME=VALUE")
      ->take_all();
  command
      ->add_option("--local-ranks", options->local_ranks,
                   "Ranks that are threads of this process, on the CPU: what mpirun would start, "
                   "where there is none")
      ->type_name("N")
      ->check(Between(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--trace", options->trace,
                   "A timeline of every rank's first steps, for ui.perfetto.dev [none]")
      ->type_name("FILE");
  command->add_option("--trace-steps", options->trace_steps, "How many")
      ->type_name("N")
      ->check(Between(1, 100000))
      ->capture_default_str();
  command->add_flag("--check-sync", options->check_sync,
                    "Count what makes the host wait for its GPU within the steps (on a CPU: what "
                    "would), and what it launches; rank 0 tells at the end of the run");
  command->add_flag(
      "--dry-run", options->dry_run,
      "Print the parameter count and whether the run fits in memory, then details and "
      "the resolved config with all defaults. Trains nothing, needs no dataset");
  command
      ->add_option(
          "--plan", options->plan,
          "With --dry-run: what the recipe costs on machines that are not here, from "
          "\"nodes=N,gpus=G\" and, where they differ from the recipe's or the preset's, sp, zero, "
          "micro_batch, device (h100, h200, a100, cpu), peak_tflops, efficiency, hbm_gbs, "
          "nvlink_gbs, network_gbs, memory_gib; auto before them searches sp, zero and micro_batch "
          "[none]")
      ->type_name("KEY=VALUE,...");
  command->add_flag("--json", options->json, "Print the plan as JSON");

  command->option_defaults()->group("Run folder");
  command
      ->add_option("--run", options->run,
                   "The run's folder [runs/ and the recipe's name; several names are joined by +]")
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

  AddInitOptions(*command, *options);
  command->callback([=, &request, modes = TrainModes(*command)] {
    modes.Require();
    request = *options;
  });
}

}  // namespace halflife::cli
