// A training run from its recipe to DONE: dataset, model, arena, resume, the step loop, validation,
// saves and stop requests.
//
//   Trainer trainer(config, device, std::move(folder), *context,
//                   {.resume = ckpt::ParseResume("auto")});
//   const ExitCode code = trainer.Run();
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/store.h"
#include "core/clock.h"
#include "dist/mesh.h"
#include "dist/rank_context.h"
#include "train/config/run_config.h"
#include "train/loop/run_data.h"
#include "train/loop/run_guards.h"
#include "train/loop/run_saves.h"
#include "train/loop/stop_policy.h"
#include "train/loop/warm_start.h"
#include "train/lora/lora.h"
#include "train/preference/reference.h"
#include "train/record/metrics.h"
#include "train/record/run_folder.h"
#include "train/record/run_timing.h"
#include "train/step/step.h"

namespace halflife::train {

struct TrainOptions {
  ckpt::ResumeRequest resume;
  // Trajectory fields that may differ from the checkpoint's.
  std::vector<std::string> allow_change;
  uint64_t skip_data = 0;  // Number of steps whose data a resumed run leaves out.
  // Weights to start from if the run has no checkpoint of its own. Null: initial values.
  const ckpt::WeightSource* init_from = nullptr;
  WarmStartRules init_rules = {};
  // Generates text with the model, for TensorBoard. Rank 0 calls it after each validation. Null:
  // off.
  std::function<std::string(const model::LanguageModel&)> sample_text = nullptr;
  TraceConfig trace = {};
  // Counts the host's waits for its device in every step, and reports them at the end.
  bool count_waits = false;
  Stopwatch clock;  // train.time_limit_s counts from its start.
};

class Trainer {
 public:
  // Collective. Opens everything that can fail, before the first step. `device` is the device that
  // `context` communicates from. Errors have the exit codes of core/exit_code.h.
  Trainer(RunConfig config, Device device, RunFolder folder, dist::RankContext& context,
          const TrainOptions& options);
  ~Trainer();

  // Returns kFinished, kRequeue (saved after USR1, TERM or the time limit) or kInterrupted (saved
  // after INT).
  ExitCode Run();

 private:
  std::vector<std::string> FieldsToChange(const std::vector<std::string>& names,
                                          const ckpt::StepState& expected) const;
  void Resume(const TrainOptions& options);
  // Fills the arena, state_ and skipped_steps_ from a checkpoint, if there is one. `may_differ`: as
  // in ckpt::Expectation.
  std::optional<ckpt::LoadReport> Load(
      const ckpt::ResumeRequest& request,
      const std::function<bool(const std::string& field)>& may_differ = {});
  void RollBack();
  ckpt::LoadReport LoadBeforeSpikes(std::vector<ckpt::StepDir>& steps);
  // Returns the number of steps whose data the run of a checkpoint has left out.
  void RequireRunOfStep(const ckpt::StepState& state, const std::filesystem::path& step);
  uint64_t SkippedSteps(const ckpt::StepState& state) const;
  uint64_t DataStep() const { return state_.step + skipped_steps_; }
  void Start(const TrainOptions& options);
  void StartAverage();
  // Called in a run with LoRA.
  void StartLora(const TrainOptions& options);
  void LoadLoraBase();
  // Scores of the right sizes for the pairs of each split, all 0.
  Reference EmptyReference(const std::string& run_id) const;
  // Called in a run with train.preference.
  void StartPreference(const TrainOptions& options);
  SetResult ScorePairs(const ValidationSet& set);
  SetResult ScoreText(const ValidationSet& set);
  ScoringConfig ScoringOfPairs() const;
  void WriteRunFiles();
  void OpenMetrics();
  std::unique_ptr<EventLog> OpenEvents() const;  // Null if it is off or not possible.
  void DescribeRun();
  void WarnOfSchedule() const;
  // Returns whether all steps are done, train.patience is used up, or train.stop_at_accuracy was
  // exceeded after the last one.
  bool Finished() const;
  bool NothingToDo() const;  // True if a finished run was started again.
  ExitCode ConfirmDone();
  StepResult TakeStep();
  StepResult RunStep(const StepScalars& flags);
  void LogWaits() const;
  void Heartbeat(const char* phase);  // At the beginning of a phase.
  // Within a phase that may take longer than a heartbeat is valid (run_lock.h). The phase goes on
  // for the watchdog.
  void RefreshHeartbeat(const char* phase);
  void WriteHeartbeat(const char* phase);
  void RunValidation();
  SetResult Score(const ValidationSet& set);
  void ShowSampleText();
  void SaveIfDue(bool requested);
  void SaveNow(bool must_succeed, bool final);
  void AwaitSave();  // Waits for the save in progress, if any.
  // Waits for the save in progress, in a run that ends with an error that all ranks agree on.
  void AwaitSaveOfEnd();
  // `end` waits for the end of a save.
  void EndSave(bool must_succeed, const std::function<BackgroundSave::Report()>& end);
  std::string WithResumeAuto() const;
  std::string AfterFailedSave() const;
  void SaveSkip();
  ExitCode SaveAndStop(ExitCode code);
  ExitCode Finish();
  ExitCode Train();
  void LogSamples(const StepResult& result);
  // Returns true if the arrays of the arena are those of a checkpoint. If not, they are copied:
  // from a GPU, and if frozen parameters have no states.
  bool arena_is_stored() const { return !device_.is_cuda() && !arena_->layout().has_frozen(); }
  ckpt::ArenaView InPlaceArena();
  void FinishLoad();
  void GatherWholeArrays();
  ckpt::StepState CurrentState(bool final) const;

  RunConfig config_;
  dist::RankContext& context_;
  Device device_;
  dist::DataMesh mesh_;
  RunFolder folder_;
  RunData data_;
  model::LanguageModel model_;
  RunTrace trace_;
  std::optional<Lora> lora_;  // with lora.rank
  std::unique_ptr<ParameterArena> arena_;
  data::TokenSourceConfig source_config_;
  std::unique_ptr<data::TokenSource> source_;
  // Saves run concurrently with the step's collectives, so they have their own group.
  std::unique_ptr<dist::Communicator> store_comm_;
  std::unique_ptr<ckpt::CheckpointStore> store_;
  std::unique_ptr<StepRunner> runner_;
  Reference reference_;                // With train.preference.
  std::unique_ptr<Metrics> metrics_;   // Rank 0.
  std::unique_ptr<RunLines> samples_;  // Rank 0, with train.log_samples.
  RankTimes rank_times_;
  std::optional<HostWaitReport> waits_;
  std::function<std::string(const model::LanguageModel&)> sample_text_;
  bool resumes_newest_;  // --resume auto: the same command continues from the newest step.
  bool skips_data_;      // --skip-data

  std::vector<std::string> allow_change_;  // The fields that may differ from a checkpoint's.
  const ckpt::Versions versions_;
  // The part of a save that is not arrays: step, cursor, guard and last metrics.
  ckpt::StepState state_;
  // The folder of the run whose step was loaded, empty for a step outside of a run. None in a new
  // run.
  std::optional<std::filesystem::path> resumed_run_;
  std::unique_ptr<HostSlices> loaded_;  // During a load, unless arena_is_stored().
  FrozenAverage frozen_average_;        // For this rank's slices.
  uint64_t skipped_steps_ = 0;          // Steps of the data's order that the run has left out.
  bool skip_is_saved_ = true;           // False while the save of --skip-data is awaited.
  // Banners of the checkpoints that were skipped on resume.
  std::vector<std::string> damage_;
  SavePolicy save_policy_;
  StopPolicy stop_policy_;
  std::optional<TargetGuard> target_guard_;
  Stopwatch run_clock_, heartbeat_clock_;
  std::unique_ptr<BackgroundSave> save_;  // Reads the members above, so it must be destroyed first.
};

}  // namespace halflife::train
