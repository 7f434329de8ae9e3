// The subcommands that train: train and sweep.
#include "cli/command_line/declare.h"

namespace halflife::cli {
namespace {

void AddRunFolder(OptionDeclarer& declare, TrainOptions& options) {
  declare.BeginGroup("Run folder");
  declare("--run RUN", options.run,
          "The folder of the run [runs/ and the recipe's name; several names are joined by +]");
  declare("--resume", options.resume, "Where to continue: auto, none, step=N or path=DIR");
  declare(
      "--skip-data N", options.skip_data,
      "With --resume step=N or path=DIR: leave out the data of the next N steps, for example of "
      "steps with loss spikes [0]");
  declare("--allow-change NAME", options.allow_change,
          "Config field that may differ from the checkpoint's, e.g. optimizer.lr; may be repeated")
      ->take_all();
  declare.Flag("--steal-lock", options.steal_lock, "Take over a run folder whose owner is dead");
}

void AddInit(OptionDeclarer& declare, TrainOptions& options) {
  declare.BeginMode("Start from other weights");
  declare("--init-from RUN", options.init_from,
          "Start from these weights (a run, RUN@best, a step, a Hugging Face folder). A checkpoint "
          "in --run takes precedence [none]");
  declare("--init-map FILE", options.init_map,
          "File of `pattern -> replacement` lines that rename tensors [none]");
  declare("--init-allow-missing GLOB", options.init_rules.allow_missing,
          "Glob of tensors that may keep their initial values; may be repeated");
  declare("--init-allow-unexpected GLOB", options.init_rules.allow_unexpected,
          "Glob of tensors of the source that may be ignored; may be repeated");
  declare("--init-new-rows", options.init_new_rows,
          "New rows of a larger vocabulary: refuse, use the mean row, or use initial values",
          OneOf({"refuse", "mean", "init"}));
}

}  // namespace

// halflife train: trains one run from a recipe, as one process or as one rank under mpirun or srun.
void AddTrain(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<TrainOptions>(
      app, request, "train", "Train a model from a recipe",
      {.notes = "The same command continues a stopped run. The names that --set accepts are in "
                "proto/halflife/run_config.proto. `halflife recipe` prints them with their "
                "values.",
       .examples = {"halflife train --config launch/recipes/quickstart.textproto --set "
                    "data.path=datasets/mine --run runs/first",
                    "launch/mpirun/run.sh --ranks 2 -- halflife train --config "
                    "launch/recipes/quickstart.textproto --set data.path=datasets/mine --set "
                    "optimizer.lr=1e-3 --run runs/second",
                    "halflife train --config launch/recipes/gla_340m.textproto --dry-run --plan "
                    "nodes=4,gpus=8,zero=1"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kTimeout,
                      ExitCode::kPeerLost, ExitCode::kNonFinite, ExitCode::kCheckpointIo,
                      ExitCode::kRequeue, ExitCode::kNoUsableCheckpoint, ExitCode::kInterrupted}});
  OptionDeclarer declare(command);
  declare
      .Required("--config RECIPE", options.configs,
                "The recipe (protobuf text format). May be repeated: later files override fields "
                "of earlier ones")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  declare("--set NAME=VALUE", options.overrides,
          "Override a field of the recipe, e.g. optimizer.lr=3e-4; may be repeated")
      ->take_all();
  declare("--local-ranks N", options.local_ranks,
          "Number of ranks as threads of this process, on the CPU. Replaces mpirun on one machine",
          Between(1, 1024));
  declare("--trace FILE", options.trace,
          "Write a timeline of the first steps of every rank, for ui.perfetto.dev [none]");
  declare("--trace-steps N", options.trace_steps, "Number of steps in the timeline",
          Between(1, 100000))
      ->needs("--trace");
  declare.Flag("--check-sync", options.check_sync,
               "Count the operations that make the host wait for its GPU within the steps (on a "
               "CPU: predict them), and the launches. Rank 0 reports them at the end");
  declare.Flag("--dry-run", options.dry_run,
               "Print the parameter count and whether the run fits in memory, then details and "
               "the resolved config with all defaults. Does not train and needs no dataset");
  declare("--plan KEY=VALUE,...", options.plan,
          "With --dry-run: predict the cost of the recipe on other machines, given as "
          "\"nodes=N,gpus=G\" and optionally sp, zero, shard, micro_batch, device (h100, h200, "
          "a100, cpu), links (a JSON file of measured bandwidths and latencies), peak_tflops, "
          "efficiency, hbm_gbs, nvlink_gbs, network_gbs and memory_gib. A leading auto searches "
          "sp, zero, shard and micro_batch [none]")
      ->needs("--dry-run");
  declare("--against RUN", options.against,
          "Compare the plan, phase by phase, with the steps that a run has recorded: the folder of "
          "the run or its metrics.jsonl [none]")
      ->needs("--plan");
  declare.Flag("--json", options.json, "Print the plan as JSON")->needs("--plan");
  AddRunFolder(declare, options);
  AddInit(declare, options);
}

// halflife sweep: runs a grid of runs of one recipe.
void AddSweep(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<SweepOptions>(
      app, request, "sweep", "Run a grid of runs of one recipe in parallel",
      {.notes = "Each run is a separate process, in --out/runs. results.csv has one row per run, "
                "summary.csv a summary and figure.svg its plot. `halflife report` accepts the "
                "folder. A failed run does not stop the others. The same command continues a "
                "stopped sweep: finished runs remain, others resume. The fields of a sweep are in "
                "proto/halflife/sweep.proto. Returns the exit code of the first run that failed.",
       .examples = {"halflife sweep --config launch/sweeps/mqar_small.textproto --out sweeps/mqar",
                    "sbatch --array=0-7 launch/slurm/sweep.sbatch --config SWEEP --out DIR"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNonFinite,
                      ExitCode::kCheckpointIo, ExitCode::kRequeue, ExitCode::kNoUsableCheckpoint,
                      ExitCode::kInterrupted}});
  OptionDeclarer declare(command);
  declare.Required("--config SWEEP", options.config, "The sweep (protobuf text format)");
  declare.Required("--out DIR", options.out, "The sweep's folder");
  declare("--set NAME=VALUE", options.overrides,
          "Override a field of every run, before the points of the axes, e.g. train.steps=100; may "
          "be repeated")
      ->take_all();
  declare("--jobs", options.jobs, "Number of parallel runs [one per GPU, or as the cores allow]",
          AtLeast(1));
  declare("--retries", options.retries, "Number of further attempts of a run that fails",
          AtLeast(0));
  declare("--share INDEX/COUNT", options.share,
          "Part of the runs, for several machines, e.g. 0/8 to 7/8");
  declare.Flag("--dry-run", options.dry_run, "Print the runs and their state, but run nothing");
}

}  // namespace halflife::cli
