// Saves a step while training goes on. A thread of its own copies what this rank stores of the
// step, beside the next forward and backward, which only read it, and then takes the copy through
// the store's phases. The update after that backward awaits the copy.
//
//   BackgroundSave save(store, comm, arena);
//   save.Begin(state);
//   ForwardAndBackward();                                  // of the next step
//   save.AwaitCopy();                                      // before the arena changes
//   const BackgroundSave::Report report = save.Finish();   // once it has ended on all ranks
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
    ckpt::SaveReport save;       // its seconds: from Begin to the end
    double blocked_seconds = 0;  // of these the caller waited
    int64_t begin_us = 0;        // Unix time
  };

  // All are borrowed; `comm`, the store's, serves nothing else while a save is under way.
  BackgroundSave(ckpt::CheckpointStore& store, dist::Communicator& comm, ParameterArena& arena);
  // Waits for a save under way, but where an exception passes and there are several ranks: then
  // the save is given up.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // None may be under way. All ranks begin the same saves.
  void Begin(ckpt::StepState state);
  // Returns once the arena may change.
  void AwaitCopy();
  bool under_way() const { return thread_.joinable(); }
  bool ended() const { return ended_; }
  // Waits for the end; throws what CheckpointStore::Save threw.
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
  std::unique_ptr<DeviceCopy> device_copy_;  // null on the CPU
  // Main weights, m and v, [layout.num_held(all of it)] fp32 each on the host, kept from save to
  // save. Three allocations: one of pinned memory is rounded up to a power of two.
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
