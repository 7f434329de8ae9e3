// halflife sweep: runs a grid of runs of one recipe.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/value_checks.h"

namespace halflife::cli {

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
