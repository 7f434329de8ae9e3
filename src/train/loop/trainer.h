// A training run from its recipe to DONE: dataset, model, arena, resume, the step loop, validation,
// saves, stop requests.
//
//   Trainer trainer(config, device, std::move(folder), *context,
//                   {.resume = ckpt::ParseResume("auto")});
//   const ExitCode code = trainer.Run();
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/store.h"
#include "core/clock.h"
#include "dist/mesh.h"
#include "dist/rank_context.h"
#include "train/config/run_config.h"
#include "train/loop/background_save.h"
#include "train/loop/save_policy.h"
#include "train/loop/stop_policy.h"
#include "train/loop/target_guard.h"
#include "train/loop/warm_start.h"
#include "train/record/host_wait_report.h"
#include "train/record/metrics.h"
#include "train/record/run_folder.h"
#include "train/record/run_lines.h"
#include "train/record/run_trace.h"
#include "train/step/step.h"

namespace halflife::train {

struct TrainOptions {
  ckpt::ResumeRequest resume;
  // Trajectory fields that may differ from the checkpoint's.
  std::vector<std::string> allow_change;
  // Weights that a run without a checkpoint of its own starts from; null: initial values.
  const ckpt::WeightSource* init_from = nullptr;
  WarmStartRules init_rules = {};
  // Lets the model write, for TensorBoard: rank 0 calls it after each validation. Null: nobody
  // asked for it.
  std::function<std::string(const model::LanguageModel&)> sample_text = nullptr;
  TraceConfig trace = {};
  bool count_waits = false;  // of the host for its device, in every step; told at the end
  Stopwatch clock;           // train.time_limit_s counts from its start
};

class Trainer {
 public:
  // Collective. Opens everything that can fail, before the first step. `device` is the one that
  // `context` communicates from. Errors carry the exit codes of core/exit_code.h.
  Trainer(RunConfig config, Device device, RunFolder folder, dist::RankContext& context,
          const TrainOptions& options);
  ~Trainer();

  // kFinished, kRequeue (saved after USR1, TERM or the time limit) or kInterrupted (saved after
  // INT).
  ExitCode Run();

 private:
  std::vector<std::string> FieldsToChange(const std::vector<std::string>& names,
                                          const ckpt::StepState& expected) const;
  void Resume(const TrainOptions& options);
  void Start(const TrainOptions& options);
  void WriteRunFiles();
  std::unique_ptr<EventLog> OpenEvents() const;  // null: not asked for, or not possible
  void DescribeRun();
  void WarnOfSchedule() const;
  // Every step is done, or train.stop_at_accuracy was passed after the last one.
  bool Finished() const;
  bool NothingToDo() const;  // where a finished run was started again
  ExitCode ConfirmDone();
  StepResult TakeStep();
  StepResult RunStep(const StepScalars& flags);
  void TellWaits() const;
  void Heartbeat(const char* phase);
  void RunValidation();
  void ShowSampleText();
  void SaveIfDue(bool requested);
  void SaveNow(bool must_succeed, bool final);
  void AwaitSave();  // of the save under way, if any
  // The same where the run ends with an error that all ranks have decided alike.
  void AwaitSaveOfEnd();
  // `end` waits for a save's end.
  void EndSave(bool must_succeed, const std::function<BackgroundSave::Report()>& end);
  std::string AfterFailedSave() const;
  ExitCode SaveAndStop(ExitCode code);
  ExitCode Finish();
  ExitCode Train();
  void LogSamples(const StepResult& result);
  ckpt::ArenaView HostArena();
  void FinishLoad();
  ckpt::StepState CurrentState(bool final) const;

  RunConfig config_;
  dist::RankContext& context_;
  Device device_;
  dist::Mesh mesh_;
  RunFolder folder_;
  data::Dataset dataset_;
  model::LanguageModel model_;
  RunTrace trace_;
  std::unique_ptr<ParameterArena> arena_;
  std::unique_ptr<data::TokenSource> source_;
  // Saves run beside the step's collectives, so they have a group of their own.
  std::unique_ptr<dist::Communicator> store_comm_;
  std::unique_ptr<ckpt::CheckpointStore> store_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<Metrics> metrics_;   // rank 0
  std::unique_ptr<RunLines> samples_;  // rank 0, with train.log_samples
  RankTimes rank_times_;
  std::optional<HostWaitReport> waits_;
  std::function<std::string(const model::LanguageModel&)> sample_text_;
  bool resumes_newest_;  // --resume auto: the same command goes on from the newest step

  const ckpt::Versions versions_;
  // What a save adds to the arrays: step, cursor, guard, last metrics.
  ckpt::StepState state_;
  // The device's arrays, while they are saved in the foreground or loaded.
  std::vector<at::Tensor> host_copies_;
  // Banners of the checkpoints that were passed over on resume.
  std::vector<std::string> damage_;
  SavePolicy save_policy_;
  StopPolicy stop_policy_;
  std::optional<TargetGuard> target_guard_;
  Stopwatch run_clock_, heartbeat_clock_;
  std::unique_ptr<BackgroundSave> save_;  // reads what is above: the first to go
};

}  // namespace halflife::train
