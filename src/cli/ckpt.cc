// `halflife ckpt`: looks at checkpoints, verifies, compares, prunes and reshards them. Exit 0:
// good; 1: a difference or damage; 2: usage.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "ckpt/reshard.h"
#include "ckpt/run_lock.h"
#include "cli/ckpt_report.h"
#include "cli/command.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/human.h"

namespace halflife::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> paths;
  std::string out, pattern = "*", states = "main,adam_m,adam_v";
  bool json = false, stats = false, bitwise = false, dry_run = false;
  int jobs = 2, world = 1, keep_last = 3, keep_every = 0;
  std::string keep_best;
};

// The text is made from the JSON, so that both always say the same.
void Print(const Options& options, const Json& json, const std::string& text) {
  if (options.json) {
    std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    std::cout << text;
  }
}

fs::path CkptDir(const std::string& path) {
  const fs::path inner = fs::path(path) / "ckpt";
  std::error_code ignored;
  return fs::is_directory(inner, ignored) ? inner : fs::path(path);
}

ckpt::StepReader OpenStep(const std::string& path) {
  return ckpt::StepReader::Open(ckpt::FindStep(path));
}

// Folders below `path`, two levels deep, that hold steps: what was probably meant.
std::vector<std::string> RunsBelow(const fs::path& path) {
  std::vector<std::string> runs;
  std::error_code ignored;
  for (auto it = fs::recursive_directory_iterator(path, ignored);
       it != fs::recursive_directory_iterator(); it.increment(ignored)) {
    if (it.depth() >= 1) it.disable_recursion_pending();
    const fs::path ckpt_dir = it->path() / "ckpt";
    if (!fs::is_directory(ckpt_dir, ignored) || ckpt::ListPublished(ckpt_dir).empty()) continue;
    runs.push_back(it->path().string());
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

ExitCode Ls(const Options& options) {
  const Json run = DescribeRun(CkptDir(options.paths[0]));
  if (!run.empty()) {
    Print(options, run, RunTable(run));
    return ExitCode::kFinished;
  }
  constexpr size_t kMostNamed = 20;
  std::vector<std::string> runs = RunsBelow(options.paths[0]);
  const size_t num_runs = runs.size();
  runs.resize(std::min(num_runs, kMostNamed));
  if (options.json) std::cout << run.dump() << "\n";
  std::cerr << "no checkpoints in " << options.paths[0];
  if (num_runs > 0) {
    std::cerr << "; there are some in\n  " << Join(runs, "\n  ")
              << (num_runs > kMostNamed ? Concat("\n  and ", num_runs - kMostNamed, " more") : "");
  }
  std::cerr << "\n";
  return ExitCode::kDifference;
}

ExitCode Inspect(const Options& options) {
  const Json step = DescribeStep(OpenStep(options.paths[0]), options.pattern, options.stats);
  Print(options, step, StepText(step));
  return ExitCode::kFinished;
}

struct Verification {
  std::vector<ckpt::StepReader::Damage> damages;
  uint64_t bytes = 0, blocks = 0;
};

Verification VerifyOne(const std::string& path, int jobs) {
  Verification result;
  try {
    const ckpt::StepReader step = OpenStep(path);
    result.bytes = step.total_bytes();
    for (const ckpt::TensorEntry& tensor : step.manifest().tensors) {
      for (const auto& fragment : tensor.fragments) result.blocks += fragment.block_hashes.size();
    }
    result.damages = step.Verify(jobs);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kNoUsableCheckpoint) throw;
    result.damages.push_back({ckpt::kManifestName, "", error.message(), 0});
  }
  return result;
}

ExitCode Verify(const Options& options) {
  Json all = Json::array();
  std::string text;
  bool good = true;
  for (const std::string& path : options.paths) {
    const Stopwatch stopwatch;
    const Verification result = VerifyOne(path, options.jobs);
    const double seconds = stopwatch.Seconds();
    Json row = {{"path", path},          {"good", result.damages.empty()},
                {"bytes", result.bytes}, {"blocks", result.blocks},
                {"seconds", seconds},    {"damage", Json::array()}};
    for (const auto& damage : result.damages) {
      good = false;
      text += Concat("DAMAGED ", path, ": ", damage.text);
      text += damage.offset == 0 ? "\n" : Concat(", at byte ", damage.offset, " of the file\n");
      row["damage"].push_back({{"file", damage.file},
                               {"tensor", damage.tensor},
                               {"offset", damage.offset},
                               {"text", damage.text}});
    }
    if (result.damages.empty()) {
      const double rate = static_cast<double>(result.bytes) / std::max(seconds, 1e-9) / 1e6;
      text += Concat("OK ", path, ": ", HumanBytes(result.bytes), ", ", result.blocks, " blocks, ",
                     Fixed(seconds, 1), " s (", Fixed(rate, 0), " MB/s)\n");
    }
    all.push_back(std::move(row));
  }
  Print(options, all, text);
  return good ? ExitCode::kFinished : ExitCode::kDifference;
}

std::vector<ckpt::Kind> ParseStates(const std::string& states) {
  std::vector<ckpt::Kind> kinds;
  std::istringstream stream(states);
  for (std::string state; std::getline(stream, state, ',');) {
    bool known = false;
    for (const auto kind : {ckpt::Kind::kMain, ckpt::Kind::kAdamM, ckpt::Kind::kAdamV}) {
      if (state != ckpt::Name(kind)) continue;
      kinds.push_back(kind);
      known = true;
    }
    HL_CHECK_AS(ExitCode::kUsage, known, "--state '", state, "' is not main, adam_m or adam_v");
  }
  return kinds;
}

ExitCode Diff(const Options& options) {
  const ckpt::StepDifference difference =
      ckpt::DiffSteps(OpenStep(options.paths[0]), OpenStep(options.paths[1]),
                      {.kinds = ParseStates(options.states), .stop_at_first = options.bitwise});
  const Json json = DescribeDifference(difference);
  Print(options, json, DifferenceText(json));
  return difference.equal() ? ExitCode::kFinished : ExitCode::kDifference;
}

ExitCode Reshard(const Options& options) {
  const ckpt::StepReader step = OpenStep(options.paths[0]);
  ckpt::ReshardStep(step, options.world, options.out);
  const std::string before = ToHex(ckpt::GatheredHash(step));
  const std::string after = ToHex(ckpt::GatheredHash(ckpt::StepReader::Open(options.out)));
  HL_CHECK(before == after, "the new step holds ", after, ", the old one ", before);
  const Json json = {{"out", options.out}, {"world", options.world}, {"gathered_hash", after}};
  Print(options, json,
        Concat("wrote ", options.out, " for ", options.world, " ranks; gathered hash ", after,
               " before and after\n"));
  return ExitCode::kFinished;
}

ExitCode Prune(const Options& options) {
  HL_CHECK_AS(ExitCode::kUsage, options.keep_last >= 2, "--keep-last ", options.keep_last,
              " must be at least 2, so that a damaged step has a predecessor");
  const fs::path ckpt_dir = fs::weakly_canonical(CkptDir(options.paths[0]));
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kUsage,
              ckpt_dir.filename() == "ckpt" && fs::is_directory(ckpt_dir, ignored),
              options.paths[0], " is no run folder: it holds no ckpt/");
  std::optional<ckpt::RunLock> lock;
  if (!options.dry_run) lock = ckpt::RunLock::Acquire(ckpt_dir.parent_path(), {});
  const auto choices = ckpt::PlanRetention(ckpt_dir, {.keep_last = options.keep_last,
                                                      .keep_every = options.keep_every,
                                                      .keep_best = options.keep_best});
  if (!options.dry_run) ckpt::ApplyRetention(ckpt_dir, choices);
  std::vector<std::vector<std::string>> rows = {{"step", "", "why"}};
  const char* const goes = options.dry_run ? "would go" : "deleted";
  for (const ckpt::RetentionChoice& choice : choices) {
    rows.push_back(
        {choice.step.path.filename().string(), choice.keep ? "stays" : goes, choice.reason});
  }
  Print(options, DescribeRetention(choices), Table(rows));
  return ExitCode::kFinished;
}

// A step that cannot be read is damage to this command, whatever it is to a resuming run.
Action AsDamage(ExitCode (*run)(const Options&), std::shared_ptr<Options> options) {
  return [run, options = std::move(options)] {
    try {
      return run(*options);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kNoUsableCheckpoint) throw;
      std::cerr << error.message() << "\n";
      return ExitCode::kDifference;
    }
  };
}

struct Subcommand {
  const char* name;
  const char* help;
  const char* operand;
  const char* operand_help;
  int min_paths, max_paths;
  ExitCode (*run)(const Options&);
  void (*add)(CLI::App&, Options&);
  Use use;
};

constexpr int kManyPaths = 1 << 20;
constexpr char kStepHelp[] = "A step's folder, or a run's for its newest step";
constexpr char kRunHelp[] = "A run's folder, or its ckpt/";

std::vector<Subcommand> Subcommands() {
  return {
      {"ls",
       "List a run's steps (manifests only)",
       "RUN",
       kRunHelp,
       1,
       1,
       Ls,
       [](CLI::App&, Options&) {},
       {.notes = "Ends with 1 where there are none.",
        .examples = {"halflife ckpt ls runs/first"},
        .exit_codes = {ExitCode::kDifference, ExitCode::kCheckpointIo}}},
      {"inspect",
       "Show one step: state, cursor, versions, tensors",
       "STEP",
       kStepHelp,
       1,
       1,
       Inspect,
       [](CLI::App& app, Options& options) {
         app.add_option("--tensors", options.pattern, "Only tensors that match this glob")
             ->capture_default_str();
         app.add_flag("--stats", options.stats, "Read the weights: min, max, rms");
       },
       {.examples = {"halflife ckpt inspect runs/first --tensors '*norm*' --stats"},
        .exit_codes = {ExitCode::kDifference, ExitCode::kCheckpointIo}}},
      {"verify",
       "Read and hash every byte of the steps",
       "STEP",
       kStepHelp,
       1,
       kManyPaths,
       Verify,
       [](CLI::App& app, Options& options) {
         app.add_option("--jobs", options.jobs, "Files read at a time")
             ->check(CLI::Range(1, 256))
             ->capture_default_str();
       },
       {.examples = {"halflife ckpt verify runs/first/ckpt/step_000000001200 --jobs 4"},
        .exit_codes = {ExitCode::kDifference, ExitCode::kCheckpointIo}}},
      {"diff",
       "Compare two steps, whatever their world sizes",
       "STEP",
       kStepHelp,
       2,
       2,
       Diff,
       [](CLI::App& app, Options& options) {
         app.add_option("--state", options.states, "What to compare, of main, adam_m and adam_v")
             ->capture_default_str();
         app.add_flag("--bitwise", options.bitwise, "Stop at the first differing element");
       },
       {.notes = "Distances are given in absolute terms, relative to the tensor, and in units in "
                 "the last place (ulps).",
        .examples = {"halflife ckpt diff runs/first runs/second --state main"},
        .exit_codes = {ExitCode::kDifference, ExitCode::kCheckpointIo}}},
      {"reshard",
       "Write a step anew for another number of ranks",
       "STEP",
       kStepHelp,
       1,
       1,
       Reshard,
       [](CLI::App& app, Options& options) {
         app.add_option("--world", options.world, "Ranks")->required()->check(CLI::Range(1, 65536));
         app.add_option("--out", options.out, "The new step's folder; must not exist")
             ->type_name("DIR")
             ->required();
       },
       {.notes = "A run resumes on any number of ranks without this; it only evens out the files.",
        .examples = {"halflife ckpt reshard runs/first --world 8 --out step_for_8"},
        .exit_codes = {ExitCode::kDifference, ExitCode::kCheckpointIo}}},
      {"prune",
       "Delete old steps",
       "RUN",
       kRunHelp,
       1,
       1,
       Prune,
       [](CLI::App& app, Options& options) {
         app.add_option("--keep-last", options.keep_last, "Newest steps to keep, at least 2")
             ->capture_default_str();
         app.add_option("--keep-every", options.keep_every, "Also keep every n-th step; 0: off")
             ->capture_default_str();
         app.add_option("--keep-best", options.keep_best,
                        "Also keep the step with the lowest value of this metric, e.g. val_loss "
                        "[none]");
         app.add_flag("--dry-run", options.dry_run, "Only say what would go, and why");
       },
       {.examples = {"halflife ckpt prune runs/first --keep-last 2 --dry-run"},
        .exit_codes = {ExitCode::kEnvironment, ExitCode::kCheckpointIo}}},
  };
}

}  // namespace

void AddCkpt(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("ckpt", "List, verify, compare and prune checkpoints");
  command->require_subcommand(1);
  DescribeUse(
      *command,
      {.examples = {"halflife ckpt ls runs/first", "halflife ckpt verify runs/first"},
       .exit_codes = {ExitCode::kDifference, ExitCode::kEnvironment, ExitCode::kCheckpointIo}});
  for (const Subcommand& subcommand : Subcommands()) {
    auto options = std::make_shared<Options>();
    CLI::App* const sub = command->add_subcommand(subcommand.name, subcommand.help);
    DescribeUse(*sub, subcommand.use);
    sub->add_option(subcommand.operand, options->paths, subcommand.operand_help)
        ->type_name(subcommand.operand)
        ->required()
        ->expected(subcommand.min_paths, subcommand.max_paths)
        ->check(CLI::ExistingDirectory);
    sub->add_flag("--json", options->json, "Print JSON");
    subcommand.add(*sub, *options);
    sub->callback([&action, options, run = subcommand.run] { action = AsDamage(run, options); });
  }
}

}  // namespace halflife::cli
