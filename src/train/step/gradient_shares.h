// Gradients for ZeRO stage 2: each rank keeps only its slices. A bucket has memory from its first
// gradient until its sum over ranks has been sent to the owners of the slices. Every micro-batch is
// summed over ranks, and each rank accumulates the slices that it owns.
//
//   GradientShares shares(arena, comm);
//   shares.BeginMicroBatch(/*first=*/true);
//   shares.Slot(param).copy_(grad);
//   shares.MarkReady(param);
//   shares.FinishMicroBatch();   // arena.grads() holds this rank's slices of the sum so far
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dist/communicator.h"
#include "dist/parameter_layout.h"
#include "train/config/run_config.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

class GradientShares {
 public:
  // Both are borrowed. The arena's gradients are sliced. `in_bf16`: they travel so, as by Bf16Wire.
  GradientShares(ParameterArena& arena, dist::Communicator& comm, bool in_bf16 = false);

  // Sums follow what is queued on the stream that LibTorch works on now.
  void BeginMicroBatch(bool first);
  at::Tensor Slot(int param);  // its gradient's place, in its shape, of this micro-batch
  // The parameter's gradient is in its slot, complete. Twice in a micro-batch is an Error naming
  // it.
  void MarkReady(int param);
  // Waits until the slices hold the sums. Error kInternal names parameters without a gradient.
  void FinishMicroBatch();

  // Seconds the host has waited since the last call of this function.
  double TakeWaitSeconds();
  int64_t most_slot_bytes() const { return most_slot_bytes_; }  // at one time, so far

 private:
  struct BucketSum {
    at::Tensor gradients;  // [bucket]; undefined: none of its gradients is there yet
    at::Tensor own;        // this rank's slice of the sum, in its place or still to be taken there
    dist::Work work;
  };
  void LaunchReady();
  void Launch(int bucket);
  void Settle(int bucket);  // waits, adds, lets go of the memory
  at::Tensor OwnSlice(int bucket) const;
  void Grow(int64_t bytes);  // of slots

  ParameterArena& arena_;
  dist::Communicator& comm_;
  bool in_bf16_;
  cudaStream_t producer_ = nullptr;  // of the micro-batch
  dist::BucketProgress progress_;
  std::vector<BucketSum> sums_;
  int num_launched_ = 0, num_settled_ = 0;
  bool first_ = true;
  double wait_seconds_ = 0;
  int64_t slot_bytes_ = 0, most_slot_bytes_ = 0;
};

}  // namespace halflife::train
