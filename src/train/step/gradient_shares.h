// Gradients for ZeRO stage 2: each rank keeps only its slices. A bucket has memory from its first
// gradient until its sum over ranks has been sent to the owners of the slices. Every micro-batch is
// summed over ranks, and each rank accumulates the slices that it owns.
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
  // Both are borrowed. The arena's gradients must be sliced. `in_bf16`: the shares of the ranks are
  // rounded to bf16.
  GradientShares(ParameterArena& arena, dist::Communicator& comm, bool in_bf16 = false);

  // Sums over ranks follow the work on LibTorch's current stream.
  void BeginMicroBatch(bool first);
  // The buffer for the gradient of a parameter in this micro-batch, in its shape.
  at::Tensor Slot(int param);
  // The gradient in the slot of this parameter is complete. A second call in the same micro-batch
  // throws an Error that names the parameter.
  void MarkReady(int param);
  // Waits until the slices hold the sums. Error kInternal names parameters without a gradient.
  void FinishMicroBatch();

  // Seconds the host has waited since the last call of this function.
  double TakeWaitSeconds();
  int64_t most_slot_bytes() const { return most_slot_bytes_; }  // largest sum of slots so far

 private:
  struct BucketSum {
    at::Tensor gradients;  // [bucket]; undefined until its first gradient
    at::Tensor own;        // this rank's slice of the sum, in the arena or a buffer
    dist::Work work;
  };
  void LaunchReady();
  void Launch(int bucket);
  void Settle(int bucket);  // waits for the sum, adds the own slice and frees the memory
  at::Tensor OwnSlice(int bucket) const;
  void Grow(int64_t bytes);  // counts allocated slots

  ParameterArena& arena_;
  dist::Communicator& comm_;
  bool in_bf16_;
  cudaStream_t producer_ = nullptr;  // the stream of the micro-batch
  dist::BucketProgress progress_;
  std::vector<BucketSum> sums_;
  int num_launched_ = 0, num_settled_ = 0;
  bool first_ = true;
  double wait_seconds_ = 0;
  int64_t slot_bytes_ = 0, most_slot_bytes_ = 0;
};

}  // namespace halflife::train
