// Saves a step while training continues. A separate thread copies this rank's part of the step
// during the next forward and backward, which only read it, and then passes the copy through the
// phases of the store. The update after that backward waits for the copy.
//
//   BackgroundSave save(store, comm, arena);
//   save.Begin(state);
//   ForwardAndBackward();                                  // The next step.
//   save.AwaitCopy();                                      // Before the arena changes.
//   const BackgroundSave::Report report = save.Finish();   // After it has ended on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "ckpt/store.h"
#include "core/clock.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

class BackgroundSave {
 public:
  struct Report {
    int64_t step = 0;
    ckpt::SaveReport save;       // save.seconds counts from Begin to the end.
    double blocked_seconds = 0;  // Part of it during which the caller waited.
    int64_t begin_us = 0;        // Unix time.
  };

  // All arguments are borrowed. `comm` is the store's and has no other use during a save.
  BackgroundSave(ckpt::CheckpointStore& store, dist::Communicator& comm, ParameterArena& arena);
  // Waits for a save in progress. Exception: if the stack is unwinding and there are several ranks,
  // the save is abandoned.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // No save may be in progress. All ranks begin the same saves.
  void Begin(ckpt::StepState state);
  // Returns when the arena may change.
  void AwaitCopy();
  bool under_way() const { return thread_.joinable(); }
  bool ended() const { return ended_; }
  // Waits for the end. Throws the error of CheckpointStore::Save.
  Report Finish();

 private:
  class DeviceCopy;

  void Run();
  void CopyOwnSlices();
  ckpt::ArenaView View();

  ckpt::CheckpointStore& store_;
  dist::Communicator& comm_;
  ParameterArena& arena_;
  const int exceptions_;
  std::unique_ptr<DeviceCopy> device_copy_;  // Null on the CPU.
  // Main weights, m and v, [layout.num_held(everything)] fp32 each, on the host, reused by all
  // saves. They are three allocations because an allocation of pinned memory is rounded up to a
  // power of two.
  std::array<at::Tensor, 3> copies_;
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
