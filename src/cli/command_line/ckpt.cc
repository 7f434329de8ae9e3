// halflife ckpt: lists, verifies, compares, prunes and reshards checkpoints.
#include "cli/command_line/declare.h"

namespace halflife::cli {
namespace {

struct Verb {
  const char *name, *help;
  bool of_run;  // Whether the operand is RUN, otherwise STEP.
  int min_paths = 1, max_paths = 1;
  Use use;
  void (*add)(OptionDeclarer& declare, CkptOptions& options) = [](auto&, auto&) {};
};

// Accepts a folder, or RUN@NAME of a folder RUN.
CLI::Validator IsStep() {
  const CLI::Validator folder =
      Folder("a step's folder, the folder of a run with a checkpoint, or RUN@best");
  return CLI::Validator(
      [folder](const std::string& text) {
        const bool is_step = folder(text.substr(0, text.rfind('@'))).empty();
        return is_step ? std::string() : folder(text);
      },
      "");
}

const std::vector<ExitCode> kCodes = {ExitCode::kDifference, ExitCode::kCheckpointIo};

// Accepts the metrics of ckpt.keep_best. Any name of a validation set is accepted, because the sets
// are known only to a run.
CLI::Validator MetricOfSteps() {
  const CLI::Validator check = OneOf({"loss", "val_loss", "val_error", "none"});
  return CLI::Validator(
      [check](std::string& text) {
        const bool named = text.starts_with("val_loss/") || text.starts_with("val_error/");
        return named ? std::string() : check(text);
      },
      check.get_description());
}

std::vector<Verb> VerbsThatRead() {
  return {
      {.name = "ls",
       .help = "List the steps of a run (reads only manifests)",
       .of_run = true,
       .use = {.notes =
                   "Marks the newest step (RUN@latest) and the best step (RUN@best). The best step "
                   "has the lowest value of the metric of ckpt.keep_best. Without it, the metric "
                   "is val_loss if any step has one, otherwise loss. The table names the metric. "
                   "The exit code is 1 if there are no steps.",
               .examples = {"halflife ckpt ls runs/first"},
               .exit_codes = kCodes}},
      {.name = "inspect",
       .help = "Show one step: state, position in the data, versions and tensors",
       .of_run = false,
       .use = {.examples = {"halflife ckpt inspect runs/first --tensors '*norm*' --stats"},
               .exit_codes = kCodes},
       .add =
           [](OptionDeclarer& declare, CkptOptions& options) {
             declare("--tensors", options.pattern, "Only tensors that match this glob");
             declare.Flag("--stats", options.stats,
                          "Also read the weights and print min, max and rms");
           }},
      {.name = "verify",
       .help = "Read and check every byte of steps. For a run: of its newest step",
       .of_run = false,
       .max_paths = CLI::detail::expected_max_vector_size,
       .use = {.examples = {"halflife ckpt verify runs/first/ckpt/step_000000001200 --jobs 4"},
               .exit_codes = kCodes},
       .add =
           [](OptionDeclarer& declare, CkptOptions& options) {
             declare("--jobs", options.jobs, "Number of files to read in parallel",
                     Between(1, 256));
           }},
      {.name = "diff",
       .help = "Compare two steps of any world sizes",
       .of_run = false,
       .min_paths = 2,
       .max_paths = 2,
       .use = {.notes = "Prints absolute distances, distances relative to the tensor, and "
                        "distances in units in the last place (ulps).",
               .examples = {"halflife ckpt diff runs/first@best runs/second@1200 --state main"},
               .exit_codes = kCodes},
       .add =
           [](OptionDeclarer& declare, CkptOptions& options) {
             declare("--state", options.states,
                     "Arrays to compare, for example main,optim/m. all: every array");
             declare.Flag("--bitwise", options.bitwise, "Stop at the first differing element");
           }},
  };
}

std::vector<Verb> VerbsThatWrite() {
  return {
      {.name = "reshard",
       .help = "Rewrite a step for another number of ranks",
       .of_run = false,
       .use = {.notes = "A run resumes on any number of ranks without this. It only balances the "
                        "files.",
               .examples = {"halflife ckpt reshard runs/first --world 8 --out step_for_8"},
               .exit_codes = kCodes},
       .add =
           [](OptionDeclarer& declare, CkptOptions& options) {
             declare.Required("--world", options.world, "Ranks", Between(1, 65536));
             declare.Required("--out DIR", options.out, "The new step's folder; must not exist");
           }},
      {.name = "average",
       .help = "Write a step with the mean of the weights of several steps",
       .of_run = false,
       .min_paths = 2,
       .max_paths = CLI::detail::expected_max_vector_size,
       .use = {.notes = "The new step has no optimizer state. It is for eval, generate, export and "
                        "train --init-from.",
               .examples = {"halflife ckpt average runs/first@800 runs/first@1000 runs/first@1200 "
                            "--out averaged"},
               .exit_codes = kCodes},
       .add =
           [](OptionDeclarer& declare, CkptOptions& options) {
             declare.Required("--out DIR", options.out, "The new step's folder; must not exist");
           }},
      {.name = "prune",
       .help = "Delete old steps",
       .of_run = true,
       .use = {.examples = {"halflife ckpt prune runs/first --keep-last 2 --dry-run"},
               .exit_codes = {ExitCode::kEnvironment, ExitCode::kCheckpointIo}},
       .add =
           [](OptionDeclarer& declare, CkptOptions& options) {
             declare("--keep-last", options.keep_last,
                     "Number of newest steps to keep, at least 2 [the recipe's ckpt.keep_last]",
                     AtLeast(2));
             declare("--keep-every", options.keep_every,
                     "Also keep every n-th step; 0: off [the recipe's ckpt.keep_every]",
                     AtLeast(0));
             declare("--keep-best", options.keep_best,
                     "Also keep the step with the lowest value of this metric: loss, val_loss, "
                     "val_error, val_loss/<set> or none [the recipe's ckpt.keep_best]",
                     MetricOfSteps());
             declare.Flag("--dry-run", options.dry_run,
                          "Only print which steps would be deleted, and why");
           }},
  };
}

void AddVerb(CLI::App& ckpt, Request& request, const Verb& verb) {
  auto [command, options] =
      AddSubcommand<CkptOptions>(ckpt, request, verb.name, verb.help, verb.use);
  OptionDeclarer declare(command);
  CLI::Option* const paths =
      verb.of_run ? declare.Required("RUN", options.paths, "A run's folder, or its ckpt/",
                                     Folder("a run's folder, or its ckpt/"))
                  : declare.Required("STEP", options.paths,
                                     "A step's folder, a run's folder for its newest step, or "
                                     "RUN@best, RUN@latest or RUN@1200",
                                     IsStep());
  paths->expected(verb.min_paths, verb.max_paths);
  declare.Flag("--json", options.json, "Print JSON");
  verb.add(declare, options);
  options.verb = verb.name;
}

}  // namespace

void AddCkpt(CLI::App& app, Request& request) {
  CLI::App& ckpt = *app.add_subcommand("ckpt", "List, verify, compare and prune checkpoints");
  ckpt.require_subcommand(1);
  DescribeUse(ckpt, {.examples = {"halflife ckpt ls runs/first", "halflife ckpt verify runs/first"},
                     .exit_codes = {ExitCode::kDifference, ExitCode::kEnvironment,
                                    ExitCode::kCheckpointIo}});
  for (const Verb& verb : VerbsThatRead()) AddVerb(ckpt, request, verb);
  for (const Verb& verb : VerbsThatWrite()) AddVerb(ckpt, request, verb);
}

}  // namespace halflife::cli
