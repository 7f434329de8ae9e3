// halflife ckpt: lists, verifies, compares, prunes and reshards checkpoints.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ckpt/run_lock.h"
#include "ckpt/step_writer.h"
#include "cli/ckpt_report.h"
#include "cli/command_line/options.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/human.h"
#include "core/json_text.h"
#include "train/config/run_config.h"

namespace halflife::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Prints the JSON or the text. The text is built from the JSON, so both contain the same values.
void Print(const CkptOptions& options, const Json& json, const std::string& text) {
  if (options.json) {
    std::cout << JsonText(json, 2) << "\n";
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

// Returns folders with steps below `path`, up to two levels deep, to suggest them.
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

ExitCode Ls(const CkptOptions& options) {
  const Json run = DescribeRun(CkptDir(options.paths[0]));
  if (!run.empty()) {
    Print(options, run, RunTable(run));
    return ExitCode::kFinished;
  }
  constexpr size_t kMaxNamed = 20;
  std::vector<std::string> runs = RunsBelow(options.paths[0]);
  const size_t num_runs = runs.size();
  runs.resize(std::min(num_runs, kMaxNamed));
  if (options.json) std::cout << run.dump() << "\n";
  std::cerr << "no checkpoints in " << options.paths[0] << ". Use "
            << (num_runs == 0 ? "the folder of a run that has saved a step."
                              : "one of these runs:\n  " + Join(runs, "\n  "))
            << (num_runs > kMaxNamed ? Concat("\n  and ", num_runs - kMaxNamed, " more") : "")
            << "\n";
  return ExitCode::kDifference;
}

ExitCode Inspect(const CkptOptions& options) {
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
      for (const auto& fragment : tensor.fragments)
        result.blocks +=
            ckpt::NumBlocks(ckpt::FragmentBytes(fragment), step.manifest().block_bytes);
    }
    result.damages = step.Verify(jobs);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kNoUsableCheckpoint) throw;
    result.damages.push_back({ckpt::kManifestName, "", error.message(), 0});
  }
  return result;
}

ExitCode Verify(const CkptOptions& options) {
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

// Returns the names of a list, or none for "all".
std::vector<std::string> ParseStates(const std::string& states) {
  std::vector<std::string> arrays;
  if (states == "all") return arrays;
  std::istringstream stream(states);
  for (std::string array; std::getline(stream, array, ',');) arrays.push_back(array);
  HL_CHECK_AS(ExitCode::kUsage, !arrays.empty(),
              "--state is empty. Use all, or names such as main and optim/m.");
  return arrays;
}

ExitCode Diff(const CkptOptions& options) {
  const ckpt::StepDifference difference =
      ckpt::DiffSteps(OpenStep(options.paths[0]), OpenStep(options.paths[1]),
                      {.arrays = ParseStates(options.states), .stop_at_first = options.bitwise});
  const Json json = DescribeDifference(difference);
  Print(options, json, DifferenceText(json));
  return difference.equal() ? ExitCode::kFinished : ExitCode::kDifference;
}

ExitCode Reshard(const CkptOptions& options) {
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

ExitCode Average(const CkptOptions& options) {
  std::vector<ckpt::StepReader> steps;
  for (const std::string& path : options.paths) steps.push_back(OpenStep(path));
  ckpt::AverageSteps(steps, options.out);
  const Json json = {{"out", options.out}, {"steps", options.paths.size()}};
  Print(options, json,
        Concat("wrote ", options.out, ": the mean of the weights of ", options.paths.size(),
               " steps, without optimizer state\n"));
  return ExitCode::kFinished;
}

// Returns the retention of the run's recipe, with the overrides of the command line.
ckpt::RetentionPolicy RetentionOf(const CkptOptions& options, const fs::path& run) {
  ckpt::RetentionPolicy policy;
  const fs::path recipe = run / "config.textproto";
  std::error_code ignored;
  const bool all_given = options.keep_last && options.keep_every && options.keep_best;
  if (!all_given && fs::exists(recipe, ignored))
    policy = train::LoadRunConfig(recipe, {}).ckpt.store.retention;
  policy.keep_last = options.keep_last.value_or(policy.keep_last);
  policy.keep_every = options.keep_every.value_or(policy.keep_every);
  policy.keep_best = options.keep_best.value_or(policy.keep_best);
  if (policy.keep_best == "none") policy.keep_best.clear();
  return policy;
}

ExitCode Prune(const CkptOptions& options) {
  // Uses the name, not the target of a link: the folder that contains ckpt/ locks a run.
  const fs::path ckpt_dir = NamedFolder(fs::absolute(CkptDir(options.paths[0])).lexically_normal());
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kUsage,
              ckpt_dir.filename() == "ckpt" && fs::is_directory(ckpt_dir, ignored),
              options.paths[0], " holds no ckpt/. Use a run's folder with one, or its ckpt/.");
  std::optional<ckpt::RunLock> lock;
  if (!options.dry_run)
    lock = ckpt::RunLock::Acquire(
        ckpt_dir.parent_path(),
        {.remedy = "its own retention (ckpt.keep_last) prunes it, or wait until it has ended"});
  const ckpt::RetentionPolicy policy = RetentionOf(options, ckpt_dir.parent_path());
  const auto choices = ckpt::PlanRetention(ckpt_dir, policy, [&](const fs::path& step_dir) {
    return VerifyOne(step_dir.string(), options.jobs).damages.empty();
  });
  HL_CHECK_AS(ExitCode::kUsage,
              !options.keep_best || policy.keep_best.empty() ||
                  std::ranges::any_of(choices, &ckpt::RetentionChoice::has_metric),
              "--keep-best ", policy.keep_best, ": no step of ", options.paths[0],
              " has it. Only steps that were saved right after a validation have this metric. Use "
              "another metric, or none.");
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

struct Verb {
  const char* name;
  ExitCode (*run)(const CkptOptions&);
};
constexpr Verb kVerbs[] = {{"ls", Ls},      {"inspect", Inspect}, {"verify", Verify},
                           {"diff", Diff},  {"reshard", Reshard}, {"average", Average},
                           {"prune", Prune}};

}  // namespace

ExitCode Run(const CkptOptions& options) {
  try {
    for (const Verb& verb : kVerbs) {
      if (options.verb == verb.name) return verb.run(options);
    }
  } catch (const Error& error) {
    // This command reports an unreadable step as damage, unlike a resuming run.
    if (error.code() != ExitCode::kNoUsableCheckpoint) throw;
    std::cerr << error.message() << "\n";
    return ExitCode::kDifference;
  }
  HL_FAIL(ExitCode::kInternal, "ckpt ", options.verb, " is missing from the table of verbs");
}

}  // namespace halflife::cli
