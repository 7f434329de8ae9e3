// halflife ckpt: lists, verifies, compares, prunes and reshards checkpoints.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/value_checks.h"

namespace halflife::cli {
namespace {

struct Subcommand {
  const char* name;
  const char* help;
  const char* operand;
  const char* operand_help;
  CLI::Validator (*operand_check)();
  int min_paths, max_paths;
  void (*add)(CLI::App&, CkptOptions&);
  Use use;
};

constexpr int kManyPaths = CLI::detail::expected_max_vector_size;
constexpr char kStepHelp[] =
    "A step's folder, a run's folder for its newest step, or RUN@best, RUN@latest or RUN@1200";
constexpr char kRunHelp[] = "A run's folder, or its ckpt/";

CLI::Validator IsRun() { return Folder("a run's folder, or its ckpt/"); }

// Accepts a folder, or RUN@NAME of a folder RUN.
CLI::Validator IsStep() {
  const CLI::Validator folder =
      Folder("a step's folder, the folder of a run with a checkpoint, or RUN@best");
  return CLI::Validator(
      [folder](std::string& text) {
        std::string run = text.substr(0, text.rfind('@'));
        return folder(run).empty() ? std::string() : folder(text);
      },
      "");
}

std::vector<Subcommand> Subcommands() {
  return {
      {"ls",
       "List the steps of a run (reads only manifests)",
       "RUN",
       kRunHelp,
       IsRun,
       1,
       1,
       [](CLI::App&, CkptOptions&) {},
       {.notes =
            "Marks the newest step (RUN@latest) and the best step (RUN@best). The best step has "
            "the lowest value of the metric of ckpt.keep_best. Without it, the metric is "
            "val_loss if any step has one, otherwise loss. The table names the metric. The "
            "exit code is 1 if there are no steps.",
        .examples = {"halflife ckpt ls runs/first"},
        .exit_codes = {ExitCode::kDifference, ExitCode::kCheckpointIo}}},
      {"inspect",
       "Show one step: state, position in the data, versions and tensors",
       "STEP",
       kStepHelp,
       IsStep,
       1,
       1,
       [](CLI::App& app, CkptOptions& options) {
         app.add_option("--tensors", options.pattern, "Only tensors that match this glob")
             ->capture_default_str();
         app.add_flag("--stats", options.stats, "Also read the weights and print min, max and rms");
       },
       {.examples = {"halflife ckpt inspect runs/first --tensors '*norm*' --stats"},
        .exit_codes = {ExitCode::kDifference, ExitCode::kCheckpointIo}}},
      {"verify",
       "Read and check every byte of steps. For a run: of its newest step",
       "STEP",
       kStepHelp,
       IsStep,
       1,
       kManyPaths,
       [](CLI::App& app, CkptOptions& options) {
         app.add_option("--jobs", options.jobs, "Number of files to read in parallel")
             ->check(Between(1, 256))
             ->capture_default_str();
       },
       {.examples = {"halflife ckpt verify runs/first/ckpt/step_000000001200 --jobs 4"},
        .exit_codes = {ExitCode::kDifference, ExitCode::kCheckpointIo}}},
      {"diff",
       "Compare two steps of any world sizes",
       "STEP",
       kStepHelp,
       IsStep,
       2,
       2,
       [](CLI::App& app, CkptOptions& options) {
         app.add_option("--state", options.states,
                        "Arrays to compare, for example main,optim/m. all: every array")
             ->capture_default_str();
         app.add_flag("--bitwise", options.bitwise, "Stop at the first differing element");
       },
       {.notes =
            "Prints absolute distances, distances relative to the tensor, and distances in units "
            "in the last place (ulps).",
        .examples = {"halflife ckpt diff runs/first@best runs/second@1200 --state main"},
        .exit_codes = {ExitCode::kDifference, ExitCode::kCheckpointIo}}},
      {"reshard",
       "Rewrite a step for another number of ranks",
       "STEP",
       kStepHelp,
       IsStep,
       1,
       1,
       [](CLI::App& app, CkptOptions& options) {
         app.add_option("--world", options.world, "Ranks")->required()->check(Between(1, 65536));
         app.add_option("--out", options.out, "The new step's folder; must not exist")
             ->type_name("DIR")
             ->required();
       },
       {.notes = "A run resumes on any number of ranks without this. It only balances the files.",
        .examples = {"halflife ckpt reshard runs/first --world 8 --out step_for_8"},
        .exit_codes = {ExitCode::kDifference, ExitCode::kCheckpointIo}}},
      {"prune",
       "Delete old steps",
       "RUN",
       kRunHelp,
       IsRun,
       1,
       1,
       [](CLI::App& app, CkptOptions& options) {
         app.add_option("--keep-last", options.keep_last,
                        "Number of newest steps to keep, at least 2 [the recipe's ckpt.keep_last]");
         app.add_option("--keep-every", options.keep_every,
                        "Also keep every n-th step; 0: off [the recipe's ckpt.keep_every]")
             ->check(AtLeast(0));
         app.add_option("--keep-best", options.keep_best,
                        "Also keep the step with the lowest value of this metric: loss, val_loss, "
                        "val_error or none [the recipe's ckpt.keep_best]")
             ->check(OneOf({"loss", "val_loss", "val_error", "none"}));
         app.add_flag("--dry-run", options.dry_run,
                      "Only print which steps would be deleted, and why");
       },
       {.examples = {"halflife ckpt prune runs/first --keep-last 2 --dry-run"},
        .exit_codes = {ExitCode::kEnvironment, ExitCode::kCheckpointIo}}},
  };
}

}  // namespace

void AddCkpt(CLI::App& app, Request& request) {
  CLI::App* const command =
      app.add_subcommand("ckpt", "List, verify, compare and prune checkpoints");
  command->require_subcommand(1);
  DescribeUse(
      *command,
      {.examples = {"halflife ckpt ls runs/first", "halflife ckpt verify runs/first"},
       .exit_codes = {ExitCode::kDifference, ExitCode::kEnvironment, ExitCode::kCheckpointIo}});
  for (const Subcommand& subcommand : Subcommands()) {
    auto options = std::make_shared<CkptOptions>();
    CLI::App* const sub = command->add_subcommand(subcommand.name, subcommand.help);
    DescribeUse(*sub, subcommand.use);
    sub->add_option(subcommand.operand, options->paths, subcommand.operand_help)
        ->type_name(subcommand.operand)
        ->required()
        ->expected(subcommand.min_paths, subcommand.max_paths)
        ->check(subcommand.operand_check());
    sub->add_flag("--json", options->json, "Print JSON");
    subcommand.add(*sub, *options);
    options->verb = subcommand.name;
    sub->callback([&request, options] { request = *options; });
  }
}

}  // namespace halflife::cli
