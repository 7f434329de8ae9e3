#include "sweep/sweep.h"

#include <algorithm>
#include <cstring>
#include <iostream>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "core/host.h"
#include "core/human.h"
#include "core/log.h"
#include "report/plot.h"
#include "report/table.h"
#include "sweep/job_queue.h"
#include "train/config/plan.h"
#include "train/device.h"

namespace halflife::sweep {
namespace {

namespace fs = std::filesystem;

// Throws if a run will not record the metric of the tables. A run on a blend has validation metrics
// only for each source and set.
void RequireMetric(const std::string& metric, const train::RunConfig& config) {
  const bool of_one_dataset = metric.starts_with("val_") && metric.find('/') == std::string::npos;
  HL_CHECK_AS(
      ExitCode::kUsage, !(config.data.is_blend() && of_one_dataset), "the summary's metric is ",
      metric,
      ", which a run on a blend does not have. Name a source or a set: summary { metric: \"",
      metric, "/", config.data.sources.front().name, "\" }.");
}

// Returns the resolved recipe of a run. Error messages start with the name of the run.
train::RunConfig RecipeOf(const SweepRequest& request, const Trial& trial) {
  const SweepFolder folder(request.folder);
  try {
    const train::RunConfig config = train::LoadRunConfig(
        request.config.recipes, WithDatasets(trial.overrides, folder.datasets()));
    RequireMetric(request.config.summary.metric, config);
    train::RunConfig planned = config;
    train::CompleteForPlan(planned, nullptr, /*world_size=*/1);
    train::RequireRows(planned, model::LanguageModel(planned.model), nullptr);
    return config;
  } catch (const Error& error) {
    HL_FAIL(error.code(), "run ", trial.name, ": ", error.message());
  }
}

// For a dataset in a sweep's folder, returns only its name, because the folder may have been moved.
std::string DatasetText(const fs::path& path) {
  return path.parent_path().filename() == "datasets" ? Concat("dataset:", path.filename().string())
                                                     : path.string();
}

// Returns the fields that determine a run's numbers: its trajectory, when it ends, and how it is
// validated. Two recipes with equal fields make the same run.
std::map<std::string, std::string> IdentityOf(const train::RunConfig& config) {
  std::map<std::string, std::string> identity = train::TrajectoryFields(config);
  for (const auto& [name, value] : train::FlatFields(config)) {
    const bool shown = name.starts_with("eval.sample_");  // Sample texts for people.
    if (name.starts_with("model.") || (name.starts_with("eval.") && !shown) ||
        name == "train.stop_at_accuracy")
      identity[name] = value;
  }
  identity["data.path"] = DatasetText(config.data.main_path());
  if (config.data.is_blend()) {
    identity["data.source"] = config.data.SourcesText();
    for (const train::DataSource& source : config.data.sources)
      identity[Concat("data.source.", source.name, ".path")] = DatasetText(source.path);
  }
  return identity;
}

// Throws if the run in the folder was made with another recipe, so that its numbers are not
// attributed to this one.
void RequireSameRecipe(const SweepFolder& folder, const Trial& trial,
                       const train::RunConfig& config) {
  const fs::path file = folder.recipe(trial.name);
  if (!IsThere(file) || !IsThere(folder.run(trial.name))) return;  // Nothing has been made with it.
  const auto recorded = IdentityOf(train::LoadRunConfig(file, {}));
  for (const auto& [name, value] : IdentityOf(config)) {
    const auto found = recorded.find(name);
    const std::string before = found == recorded.end() ? "nothing" : found->second;
    HL_CHECK_AS(ExitCode::kUsage, before == value, "run ", trial.name, " in ",
                folder.path().string(), " was made with ", name, " ", before,
                ", but the sweep now has ", value, ". Use another --out, or remove ",
                folder.run(trial.name).string(), " and ", file.string());
  }
}

// Throws if a dataset that already exists was made with other options.
void RequireSameDatasets(const SweepRequest& request) {
  const SweepFolder folder(request.folder);
  for (const DatasetToPrepare& dataset : request.config.datasets) {
    const fs::path file = folder.dataset_words(dataset.name);
    if (!IsThere(folder.datasets() / dataset.name) || !IsThere(file)) continue;
    const std::string before = ReadFile(file, ExitCode::kEnvironment),
                      now = Join(dataset.words, " ") + "\n";
    HL_CHECK_AS(ExitCode::kUsage, before == now, "dataset ", dataset.name, " in ",
                folder.path().string(), " was made by `prepare ",
                before.substr(0, before.find('\n')), "`, but the sweep now has `",
                Join(dataset.words, " "), "`. Use another name or another --out.");
  }
}

bool MayGoBetterAgain(int exit_code) {
  return exit_code != static_cast<int>(ExitCode::kUsage) &&
         exit_code != static_cast<int>(ExitCode::kData);
}

class Sweep {
 public:
  explicit Sweep(const SweepRequest& request)
      : request_(request), folder_(request.folder), trials_(Grid(request.config)) {
    for (size_t i = 0; i < trials_.size(); ++i)
      if (static_cast<int>(i) % request.num_shares == request.share) mine_.push_back(i);
  }

  ExitCode Run() {
    for (const size_t i : mine_) {
      recipes_[i] = RecipeOf(request_, trials_[i]);
      RequireSameRecipe(folder_, trials_[i], recipes_[i]);
    }
    RequireSameDatasets(request_);
    RequireDatasets();
    folder_.Make();
    for (const size_t i : mine_) {
      const std::string& name = trials_[i].name;
      // The recipe of a finished run documents how it was made and is kept.
      if (IsFinished(i) && IsThere(folder_.recipe(name))) continue;
      AtomicWriteFile(folder_.recipe(name), train::ToText(recipes_[i]), ExitCode::kEnvironment);
    }
    AtomicWriteFile(folder_.sweep_file(), request_.config.text, ExitCode::kEnvironment);
    results_ = ReadResults(request_.config, folder_, request_.read_run);
    const int stopped_by = RunAll(recipes_.empty() ? Slots() : SlotsOfAll());
    results_ = ReadResults(request_.config, folder_, request_.read_run);
    WriteResults();
    std::cout << Ending() << std::flush;
    return Verdict(stopped_by);
  }

 private:
  bool IsFinished(size_t i) const {
    return folder_.Status(trials_[i].name).state == TrialState::kFinished;
  }

  // Returns true if the sweep still has to make the run's dataset.
  bool AwaitsDataset(size_t i) const {
    const fs::path path = recipes_.at(i).data.main_path();
    return path.parent_path() == folder_.datasets() && !IsThere(path);
  }

  // Throws if the dataset of an unfinished run cannot be read or does not fit its recipe. The
  // message names the first such run. Datasets that still have to be made are skipped.
  void RequireDatasets() const {
    std::map<std::string, data::Dataset> datasets;  // By path, because runs share datasets.
    for (const size_t i : mine_) {
      if (IsFinished(i) || AwaitsDataset(i)) continue;
      try {
        train::RunConfig config = recipes_.at(i);
        const std::string path = config.data.main_path();
        HL_CHECK_AS(ExitCode::kUsage, !path.empty(),
                    "data.path is not set. Name a dataset: set: \"data.path=DATASET\".");
        auto found = datasets.find(path);
        if (found == datasets.end())
          found = datasets.emplace(path, data::Dataset::Open(path)).first;
        train::CompleteForPlan(config, &found->second.info(), /*world_size=*/1);
        train::RequireDataset(config, model::LanguageModel(config.model), found->second);
      } catch (const Error& error) {
        HL_FAIL(error.code(), "run ", trials_[i].name, ": ", error.message());
      }
    }
  }

  // Throws kData if none of the open runs can start because their datasets could not be made.
  void RequireOneDataset(const std::vector<size_t>& open) const {
    const bool any = std::ranges::any_of(open, [&](size_t i) { return !AwaitsDataset(i); });
    if (open.empty() || any) return;
    const std::string name = fs::path(recipes_.at(open.front()).data.main_path()).filename();
    HL_FAIL(ExitCode::kData, "no run can start: dataset ", name, " could not be made. Its log, ",
            folder_.dataset_log(name).string(),
            ", ends with: ", LastWords(folder_.dataset_log(name)),
            "\nCorrect its `prepare` line in the sweep's file, then start the same command again.");
  }

  // Returns one slot per GPU if a run may use one. Otherwise divides the cores by the threads of
  // the run that has most.
  Slots SlotsOfAll() const {
    Slots slots;
    bool uses_gpu = false;
    int threads = 1;
    for (const auto& [trial, recipe] : recipes_) {
      uses_gpu |= recipe.train.device != "cpu";
      threads = std::max(threads, recipe.train.threads);
    }
    const int num_gpus = uses_gpu ? train::NumGpus() : 0;
    for (int gpu = 0; gpu < num_gpus; ++gpu) slots.gpus.push_back(GpuName(gpu));
    const int cores = NumUsableCores();
    slots.count = request_.jobs > 0 ? request_.jobs
                  : num_gpus > 0    ? num_gpus
                                    : std::max(1, cores / threads);
    slots.threads = std::max(1, cores / slots.count);
    return slots;
  }
  // Returns the name of visible GPU number `gpu` for a child's CUDA_VISIBLE_DEVICES.
  static std::string GpuName(int gpu) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (visible == nullptr) return Concat(gpu);
    std::istringstream names(visible);
    std::string name;
    for (int i = 0; i <= gpu; ++i) std::getline(names, name, ',');
    return name;
  }

  int RunAll(const Slots& slots) {
    std::vector<size_t> open;
    for (const size_t i : mine_)
      if (results_[i].status.state != TrialState::kFinished) open.push_back(i);
    HL_INFO("sweep", trials_.size(), " runs", Mine(), ", ", mine_.size() - open.size(),
            " of them finished, ", slots.count, " at a time");
    if (const int signal = PrepareDatasets(open, slots); signal != 0) return signal;
    RequireDatasets();
    RequireOneDataset(open);
    std::vector<Job> jobs;
    for (const size_t i : open)
      if (HasItsDatasets(trials_[i])) jobs.push_back(JobOf(i));
    return RunJobs(jobs, slots);
  }
  std::string Mine() const {
    return request_.num_shares == 1 ? ""
                                    : Concat(", ", mine_.size(), " in share ", request_.share,
                                             " of ", request_.num_shares);
  }

  // Prepares the datasets that open runs need and that do not exist.
  int PrepareDatasets(const std::vector<size_t>& open, const Slots& slots) {
    std::set<std::string> needed;
    for (const size_t i : open)
      for (const std::string& name : DatasetsOf(trials_[i].overrides)) needed.insert(name);
    std::vector<Job> jobs;
    for (const DatasetToPrepare& dataset : request_.config.datasets)
      if (needed.contains(dataset.name) && !IsThere(folder_.datasets() / dataset.name))
        jobs.push_back(JobOf(dataset));
    return RunJobs(jobs, slots);
  }

  Job JobOf(const DatasetToPrepare& dataset) const {
    std::vector<std::string> words = {request_.program.string(), "prepare"};
    words.insert(words.end(), dataset.words.begin(), dataset.words.end());
    words.insert(words.end(), {"--out", (folder_.datasets() / dataset.name).string()});
    const fs::path log = folder_.dataset_log(dataset.name);
    return {.command = {.words = words, .environment = {}, .log = log},
            .started =
                [this, &dataset] {
                  HL_INFO("sweep", "preparing dataset ", dataset.name);
                  AtomicWriteFile(folder_.dataset_words(dataset.name),
                                  Join(dataset.words, " ") + "\n", ExitCode::kEnvironment);
                  return true;
                },
            .ended =
                [name = dataset.name, log](int exit_code, double seconds, bool) {
                  if (exit_code == 0)
                    HL_INFO("sweep", "dataset ", name, " was made in ", HumanSeconds(seconds));
                  else
                    HL_ERROR("sweep", "dataset ", name, ": exit code ", exit_code, ". See ",
                             log.string());
                  return false;
                }};
  }

  // Returns true if all datasets of the run exist, and otherwise marks the run as failed. A dataset
  // that could not be made here exists if another share made it at the same time.
  bool HasItsDatasets(const Trial& trial) {
    for (const std::string& name : DatasetsOf(trial.overrides)) {
      if (IsThere(folder_.datasets() / name)) continue;
      TrialStatus status = folder_.Status(trial.name);
      status.state = TrialState::kFailed;
      status.exit_code = static_cast<int>(ExitCode::kData);
      status.message =
          Concat("dataset ", name, " could not be made. See ", folder_.dataset_log(name).string());
      folder_.SetStatus(trial.name, status);
      return false;
    }
    return true;
  }

  Job JobOf(size_t i) {
    const std::string& name = trials_[i].name;
    return {
        .command = {.words = {request_.program.string(), "train", "--config",
                              folder_.recipe(name).string(), "--run", folder_.run(name).string()},
                    .environment = {},
                    .log = folder_.log(name)},
        .started = [this, i] { return Starts(i); },
        .ended = [this, i](int exit_code, double seconds,
                           bool stopping) { return Ended(i, exit_code, seconds, stopping); }};
  }

  // Returns false if another sweep of this folder runs the trial, or has finished it.
  bool Starts(size_t i) {
    const std::string& name = trials_[i].name;
    if (!locks_.contains(i)) {
      std::optional<Fd> lock = folder_.Lock(name);
      TrialStatus& status = results_[i].status = folder_.Status(name);
      if (!lock || status.state == TrialState::kFinished) {
        HL_INFO("sweep", name, lock ? " was finished" : " is being run", " by another sweep");
        return false;
      }
      locks_[i] = *std::move(lock);
    }
    std::error_code ignored;
    const uint64_t log_bytes = fs::file_size(folder_.log(name), ignored);
    log_begins_[i] = ignored ? 0 : log_bytes;
    TrialStatus& status = results_[i].status;
    status.state = TrialState::kRunning;
    ++status.attempts;
    folder_.SetStatus(name, status);
    return true;
  }

  // Returns why an attempt failed: the signal that ended it, and the last line of its log, if it
  // wrote any.
  std::string Reason(size_t i, int exit_code) const {
    const std::string words = LastWords(folder_.log(trials_[i].name), log_begins_.at(i));
    const char* const signal = exit_code > 128 ? ::sigabbrev_np(exit_code - 128) : nullptr;
    if (signal == nullptr) return words;
    return Concat("ended by SIG", signal, words.empty() ? "" : "; last line of its log: ", words);
  }

  bool Ended(size_t i, int exit_code, double seconds, bool stopping) {
    TrialStatus status = results_[i].status;
    status.exit_code = exit_code;
    status.seconds += seconds;
    const bool saved = exit_code == static_cast<int>(ExitCode::kRequeue) ||
                       exit_code == static_cast<int>(ExitCode::kInterrupted);
    status.state = exit_code == 0      ? TrialState::kFinished
                   : stopping || saved ? TrialState::kStopped
                                       : TrialState::kFailed;
    status.message = status.state == TrialState::kFailed ? Reason(i, exit_code) : "";
    folder_.SetStatus(trials_[i].name, status);
    results_[i] = ReadResult(request_.config.summary, folder_, trials_[i], request_.read_run);
    LogTrial(i, seconds);
    WriteResults();
    const bool again = status.state == TrialState::kFailed && MayGoBetterAgain(exit_code) &&
                       ++num_retries_[i] <= request_.retries;
    if (again) HL_INFO("sweep", trials_[i].name, " is started again");
    if (!again || stopping) locks_.erase(i);
    return again && !stopping;
  }

  void LogTrial(size_t i, double seconds) const {
    const TrialResult& result = results_[i];
    if (result.status.state == TrialState::kFailed) {
      HL_ERROR("sweep", trials_[i].name, " failed with exit code ", result.status.exit_code, ": ",
               result.status.message);
      return;
    }
    HL_INFO("sweep", Count(TrialState::kFinished), " of ", mine_.size(), ": ", trials_[i].name, " ",
            NameOf(result.status.state), " after ", HumanSeconds(seconds),
            result.best
                ? Concat(", best ", request_.config.summary.metric, " ", Fixed(result.best->y, 4),
                         " at step ", static_cast<int64_t>(result.best->x))
                : "");
  }

  size_t Count(TrialState state) const {
    return static_cast<size_t>(
        std::ranges::count_if(mine_, [&](size_t i) { return results_[i].status.state == state; }));
  }

  void WriteResults() const {
    const auto write = [&](const char* name, const std::string& text) {
      AtomicWriteFile(folder_.path() / name, text, ExitCode::kEnvironment);
    };
    const std::vector<Group> groups = SumUp(request_.config, results_);
    write("results.csv", report::Csv(ResultsTable(request_.config, results_)));
    write("summary.csv", report::Csv(SummaryTable(request_.config, groups, Digits::kAll)));
    const std::vector<report::PlotSpec> figure = Figure(request_.config, groups);
    if (!figure.empty()) write("figure.svg", report::RenderFigure(figure));
  }

  // Returns the results of this share's runs, for the terminal.
  std::string Ending() const {
    const Summary& summary = request_.config.summary;
    std::vector<TrialResult> mine;
    for (const size_t i : mine_) mine.push_back(results_[i]);
    std::string text = report::AlignedText(RunsTable(request_.config, mine)) + "\n";
    const std::vector<Group> groups = SumUp(request_.config, results_);
    if (!groups.empty() && !(summary.over.empty() && summary.best_of.empty()))
      text += report::AlignedText(SummaryTable(request_.config, groups, Digits::kFour)) + "\n";
    text += Concat(Count(TrialState::kFinished), " of ", mine_.size(), " runs finished, ",
                   Count(TrialState::kFailed), " failed; ", folder_.path().string(),
                   "/results.csv, summary.csv", summary.x.empty() ? "" : ", figure.svg", "\n");
    for (const size_t i : mine_)
      if (results_[i].status.state == TrialState::kFailed)
        text +=
            Concat("failed  ", trials_[i].name, "  ", folder_.log(trials_[i].name).string(), "\n");
    return text;
  }

  ExitCode Verdict(int stopped_by) const {
    if (stopped_by == SIGINT) return ExitCode::kInterrupted;
    if (stopped_by != 0) return ExitCode::kRequeue;
    for (const size_t i : mine_) {
      const TrialStatus& status = results_[i].status;
      if (status.state == TrialState::kFailed) return static_cast<ExitCode>(status.exit_code);
      // A run that was stopped continues with the next call.
      if (status.state != TrialState::kFinished) return ExitCode::kRequeue;
    }
    return ExitCode::kFinished;
  }

  const SweepRequest& request_;
  const SweepFolder folder_;
  const std::vector<Trial> trials_;
  std::vector<size_t> mine_;
  std::map<size_t, train::RunConfig> recipes_;  // The recipes of mine_.
  std::vector<TrialResult> results_;            // All trials, in order.
  std::map<size_t, int> num_retries_;
  std::map<size_t, Fd> locks_;             // Held for running trials.
  std::map<size_t, uint64_t> log_begins_;  // Where a trial's last attempt starts in its log.
};

}  // namespace

std::string PlanText(const SweepRequest& request) {
  const SweepFolder folder(request.folder);
  std::string text;
  std::map<TrialState, int> count;
  for (const TrialResult& result : ReadResults(request.config, folder, request.read_run)) {
    const train::RunConfig recipe = RecipeOf(request, result.trial);
    RequireSameRecipe(folder, result.trial, recipe);
    ++count[result.status.state];
    text += Concat(NameOf(result.status.state), "  ", result.trial.name, "\n");
  }
  std::string head;
  for (const auto& [state, number] : count)
    head += Concat(head.empty() ? "" : ", ", number, " ", NameOf(state));
  std::string datasets;
  for (const DatasetToPrepare& dataset : request.config.datasets)
    datasets +=
        Concat("dataset  ", dataset.name,
               IsThere(folder.datasets() / dataset.name) ? "  exists" : "  to be made", "\n");
  return Concat(head, "\n", datasets, text);
}

ExitCode RunSweep(const SweepRequest& request) { return Sweep(request).Run(); }

}  // namespace halflife::sweep
