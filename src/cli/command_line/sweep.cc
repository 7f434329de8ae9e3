// halflife sweep: a grid of runs of one recipe.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/value_checks.h"

namespace halflife::cli {

void AddSweep(CLI::App& app, Request& request) {
  auto options = std::make_shared<SweepOptions>();
  CLI::App* command = app.add_subcommand("sweep", "A grid of runs of one recipe, side by side");
  DescribeUse(
      *command,
      {.notes =
           "Each run is a process of its own, in --out/runs; results.csv has a row for each, "
           "summary.csv what they come to, figure.svg draws it, and `halflife report` takes the "
           "folder. A run that fails stops no other. The same command goes on where it was "
           "stopped: finished runs stay, others resume. What a sweep's file may say is in "
           "proto/halflife/sweep.proto. Ends with the exit code of the first run that failed.",
       .examples = {"halflife sweep --config launch/sweeps/mqar_small.textproto --out sweeps/mqar",
                    "sbatch --array=0-7 launch/slurm/sweep.sbatch --config SWEEP --out DIR"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNonFinite,
                      ExitCode::kCheckpointIo, ExitCode::kRequeue, ExitCode::kInterrupted}});
  command->add_option("--config", options->config, "The sweep (protobuf text format)")
      ->type_name("SWEEP")
      ->required();
  command->add_option("--out", options->out, "The sweep's folder")->type_name("DIR")->required();
  command
      ->add_option(
          "--set", options->overrides,
          "Overrides a field of every run, before the axes' points, e.g. train.steps=100; may be "
          "repeated")
      ->type_name("NAME=VALUE")
      ->take_all();
  command->add_option("--jobs", options->jobs, "Runs at a time [one a GPU, or as the cores allow]")
      ->check(AtLeast(1));
  command->add_option("--retries", options->retries, "Further attempts of a run that fails")
      ->check(AtLeast(0))
      ->capture_default_str();
  command
      ->add_option("--share", options->share,
                   "Part of the runs, for several machines, e.g. 0/8 to 7/8")
      ->type_name("INDEX/COUNT")
      ->capture_default_str();
  command->add_flag("--dry-run", options->dry_run,
                    "Print the runs and how they stand; run nothing");
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
