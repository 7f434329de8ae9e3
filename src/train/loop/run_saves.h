// How a run saves: when (SavePolicy), and while training continues (BackgroundSave).
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/state.h"
#include "ckpt/store.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "train/config/run_config.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

// Host copies of the slices that this rank stores in a checkpoint: one [num_held(everything)] fp32
// array per stored array of the arena. Saves copy the slices out while training goes on, and a load
// on a GPU reads into them, so that no rank ever needs host memory for the whole model.

// The average of the weights (OptimizerConfig::ema_decay) of the frozen parameters in this rank's
// slices, which the arena does not have. It approaches the weights, which no longer change.
struct FrozenAverage {
  std::vector<float> values;  // Empty: the average is the weights.
  uint64_t num_updates = 0;   // The update after which the average has these values.
};

class HostSlices {
 public:
  // `arena` is borrowed; `slice` is this rank's. Takes no memory before Allocate.
  HostSlices(ParameterArena& arena, int slice) : arena_(arena), slice_(slice) {}

  // Allocates the arrays, once. They are separate because an allocation of pinned memory is rounded
  // up to a power of two. The memory is pinned if the arena is on a GPU.
  void Allocate();
  // Returns the names of the arrays, and their memory if it is allocated.
  ckpt::ArenaView View();
  // Copies the slices from the arena. On a GPU, queues the copies on the current stream. Arrays
  // that have no elements of frozen parameters stay zero there.
  void CopyFromArena();
  // After the copies have ended: advances the average of frozen parameters to update `num_updates`,
  // and writes it to its array.
  void WriteFrozenAverage(double ema_decay, uint64_t num_updates, FrozenAverage& average);
  // After a load: the values of a FrozenAverage. Empty without an average or frozen parameters.
  std::vector<float> LoadedFrozenAverage();
  // Copies the slices into the arena. On a GPU, later work of the current stream sees them, and the
  // host memory may be changed or freed at once.
  void CopyToArena();
  int64_t bytes() const;

 private:
  // Calls copy(part of the host array, part of the arena's array) for each bucket of each array
  // that the arena has.
  template <typename Copy>
  void ForEachPart(const Copy& copy);
  // Calls visit(average, weights) with the host arrays of each frozen bucket, if there is an
  // average.
  void ForEachFrozenPart(
      const std::function<void(std::span<float> average, std::span<const float> weights)>& visit);

  ParameterArena& arena_;
  const int slice_;
  std::vector<at::Tensor> arrays_;  // as arena_.stored_arrays()
};

// Decides when a run saves, and whether it continues after a failed save.
class SavePolicy {
 public:
  explicit SavePolicy(const SaveConfig& config);

  // Returns whether to save after `step`. Reasons: the recipe's interval, a validation with the
  // best metric so far if ckpt.keep_best names one, or a request (SIGUSR2).
  bool IsDue(int64_t step, bool requested) const;

  // Records the metrics of a validation after `step`.
  void NoteValidation(int64_t step, const std::map<std::string, double>& metrics);
  // Adds the best value to a checkpoint's metrics, as "best_val_loss". A resumed run continues from
  // it, and RUN@best takes the measure from its name (ckpt/reader.h); that is why the loss of the
  // step is added as "best_loss" if ckpt.keep_best is "loss".
  void AddBest(std::map<std::string, double>& metrics) const;
  // Removes the values that AddBest added, for any ckpt.keep_best, and uses the one of this policy.
  // `own`: the checkpoint is in the run's own folder, the only place where its best step can be
  // kept.
  void TakeBest(std::map<std::string, double>& metrics, bool own);

  // Records that the run's own folder contains a checkpoint of `step`.
  void NoteSaved(int64_t step);
  bool IsSaved(int64_t step) const { return step == saved_step_; }
  int64_t saved_step() const { return saved_step_; }  // The newest saved step. -1: none.

  // Counts a failed save. Returns true if the storage refused the save, the recipe says "warn" and
  // the previous save did not fail: the older checkpoints are unchanged. A second consecutive
  // failure would leave the run unsaved for two intervals. Other errors are not storage failures.
  bool GoesOnAfter(ExitCode failure);

 private:
  int64_t every_;
  std::string on_error_;
  int64_t saved_step_ = -1;
  int failed_in_a_row_ = 0;
  std::string metric_;  // The validation metric whose lowest value is kept. Empty: none.
  bool keeps_lowest_loss_;
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  double best_ = kNone;
  double saved_best_ = kNone;  // The value to restore in best_ after a failed save.
  int64_t best_step_ = -1;
};

// Saves a step while training continues. A separate thread copies this rank's part of the step
// during the next forward and backward, which only read it, and then passes the copy through the
// phases of the store. The update after that backward waits for the copy. On a GPU, Begin enqueues
// the copy on a stream of its own, and the host does not wait for it.
class BackgroundSave {
 public:
  struct Report {
    int64_t step = 0;
    ckpt::SaveReport save;       // save.seconds counts from Begin to the end.
    double blocked_seconds = 0;  // Part of it during which the caller waited.
    int64_t begin_us = 0;        // Unix time.
  };

  // All arguments are borrowed. `comm` is the store's and has no other use during a save. `average`
  // may change only while no save is under way, and is unused if `ema_decay` is 0.
  BackgroundSave(ckpt::CheckpointStore& store, dist::Communicator& comm, ParameterArena& arena,
                 double ema_decay, FrozenAverage& average);
  // Waits for a save in progress. Exception: if the stack is unwinding and there are several ranks,
  // the save is abandoned.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // No save may be in progress. All ranks begin the same saves.
  void Begin(ckpt::StepState state);
  // Returns when the arena may change. On a GPU, holds back later work of the current stream until
  // the arena has been copied.
  void AwaitCopy();
  bool under_way() const { return thread_.joinable(); }
  bool ended() const { return ended_; }
  // Waits for the end. Throws the error of CheckpointStore::Save.
  Report Finish();

 private:
  class DeviceCopy;

  void Run();

  ckpt::CheckpointStore& store_;
  dist::Communicator& comm_;
  const double ema_decay_;
  FrozenAverage& average_;
  const int exceptions_;
  std::unique_ptr<DeviceCopy> device_copy_;  // Null on the CPU.
  HostSlices slices_;                        // Reused by all saves.
  ckpt::StepState state_;
  Report report_;
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable copied_;
  bool is_copied_ = true;
  std::atomic<bool> ended_ = false;
  Stopwatch clock_;
  std::thread thread_;
};

}  // namespace halflife::train
