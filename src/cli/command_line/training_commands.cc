// The subcommands that train: train and sweep.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/modes.h"
#include "cli/command_line/value_checks.h"

namespace halflife::cli {
namespace {

// halflife train: trains one run from a recipe, as one process or as one rank under mpirun or srun.
constexpr char kInitGroup[] = "Start from other weights";

void AddInitOptions(CLI::App& command, TrainOptions& options) {
  command.option_defaults()->group(kInitGroup);
  command
      .add_option("--init-from", options.init_from,
                  "Start from these weights (a run, RUN@best, a step, a Hugging Face folder). A "
                  "checkpoint in --run takes precedence [none]")
      ->type_name("RUN");
  command
      .add_option("--init-map", options.init_map,
                  "File of `pattern -> replacement` lines that rename tensors [none]")
      ->type_name("FILE");
  command
      .add_option("--init-allow-missing", options.init_rules.allow_missing,
                  "Glob of tensors that may keep their initial values; may be repeated")
      ->type_name("GLOB");
  command
      .add_option("--init-allow-unexpected", options.init_rules.allow_unexpected,
                  "Glob of tensors of the source that may be ignored; may be repeated")
      ->type_name("GLOB");
  command
      .add_option(
          "--init-new-rows", options.init_new_rows,
          "New rows of a larger vocabulary: refuse, use the mean row, or use initial values")
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
      {.notes = "The same command continues a stopped run. The names that --set accepts are in "
                "proto/halflife/run_config.proto. `halflife recipe` prints them with their "
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
          "The recipe (protobuf text format). May be repeated: later files override fields "
          "of earlier ones")
      ->type_name("RECIPE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all()
      ->required();
  command
      ->add_option("--set", options->overrides,
                   "Override a field of the recipe, e.g. optimizer.lr=3e-4; may be repeated")
      ->type_name("NAME=VALUE")
      ->take_all();
  command
      ->add_option("--local-ranks", options->local_ranks,
                   "Number of ranks as threads of this process, on the CPU. Replaces mpirun on one "
                   "machine")
      ->type_name("N")
      ->check(Between(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--trace", options->trace,
                   "Write a timeline of the first steps of every rank, for ui.perfetto.dev [none]")
      ->type_name("FILE");
  command->add_option("--trace-steps", options->trace_steps, "Number of steps in the timeline")
      ->type_name("N")
      ->check(Between(1, 100000))
      ->capture_default_str();
  command->add_flag(
      "--check-sync", options->check_sync,
      "Count the operations that make the host wait for its GPU within the steps (on a "
      "CPU: predict them), and the launches. Rank 0 reports them at the end");
  command->add_flag(
      "--dry-run", options->dry_run,
      "Print the parameter count and whether the run fits in memory, then details and "
      "the resolved config with all defaults. Does not train and needs no dataset");
  command
      ->add_option(
          "--plan", options->plan,
          "With --dry-run: predict the cost of the recipe on other machines, given as "
          "\"nodes=N,gpus=G\" and optionally sp, zero, micro_batch, device (h100, h200, a100, "
          "cpu), peak_tflops, efficiency, hbm_gbs, nvlink_gbs, network_gbs and memory_gib. "
          "A leading auto searches sp, zero and micro_batch "
          "[none]")
      ->type_name("KEY=VALUE,...");
  command->add_flag("--json", options->json, "Print the plan as JSON");

  command->option_defaults()->group("Run folder");
  command
      ->add_option(
          "--run", options->run,
          "The folder of the run [runs/ and the recipe's name; several names are joined by +]")
      ->type_name("RUN");
  command
      ->add_option("--resume", options->resume, "Where to continue: auto, none, step=N or path=DIR")
      ->capture_default_str();
  command
      ->add_option("--allow-change", options->allow_change,
                   "Config field that may differ from the checkpoint's, e.g. optimizer.lr; may "
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

// halflife sweep: runs a grid of runs of one recipe.
void AddSweep(CLI::App& app, Request& request) {
  auto options = std::make_shared<SweepOptions>();
  CLI::App* command = app.add_subcommand("sweep", "Run a grid of runs of one recipe in parallel");
  DescribeUse(
      *command,
      {.notes = "Each run is a separate process, in --out/runs. results.csv has one row per run, "
                "summary.csv a summary and figure.svg its plot. `halflife report` accepts the "
                "folder. A failed run does not stop the others. The same command continues a "
                "stopped sweep: finished runs remain, others resume. The fields of a sweep are in "
                "proto/halflife/sweep.proto. Returns the exit code of the first run that failed.",
       .examples = {"halflife sweep --config launch/sweeps/mqar_small.textproto --out sweeps/mqar",
                    "sbatch --array=0-7 launch/slurm/sweep.sbatch --config SWEEP --out DIR"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNonFinite,
                      ExitCode::kCheckpointIo, ExitCode::kRequeue, ExitCode::kInterrupted}});
  command->add_option("--config", options->config, "The sweep (protobuf text format)")
      ->type_name("SWEEP")
      ->required();
  command->add_option("--out", options->out, "The sweep's folder")->type_name("DIR")->required();
  command
      ->add_option("--set", options->overrides,
                   "Override a field of every run, before the points of the axes, e.g. "
                   "train.steps=100; may be "
                   "repeated")
      ->type_name("NAME=VALUE")
      ->take_all();
  command
      ->add_option("--jobs", options->jobs,
                   "Number of parallel runs [one per GPU, or as the cores allow]")
      ->check(AtLeast(1));
  command
      ->add_option("--retries", options->retries, "Number of further attempts of a run that fails")
      ->check(AtLeast(0))
      ->capture_default_str();
  command
      ->add_option("--share", options->share,
                   "Part of the runs, for several machines, e.g. 0/8 to 7/8")
      ->type_name("INDEX/COUNT")
      ->capture_default_str();
  command->add_flag("--dry-run", options->dry_run,
                    "Print the runs and their state, but run nothing");
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
