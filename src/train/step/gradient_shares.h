// Gradients for ZeRO stages 2 and 3: each rank keeps only its part. A bucket has memory from its
// first gradient until its sum over ranks has been sent to the ranks that hold its parts. Every
// micro-batch is summed over the shard group, and each rank accumulates the range that it holds.
// After the last micro-batch, the ranges are summed over the replica group
// (dist/share_reducer.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dist/share_reducer.h"
#include "train/config/run_config.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

class GradientShares final : private dist::ShareMemory {
 public:
  // All are borrowed. The arena's gradients must be divided over the shard group. `in_bf16`: the
  // shares of the ranks are rounded to bf16, and with replicas the sums of shard groups, too.
  GradientShares(ParameterArena& arena, dist::ShardGroups groups, bool in_bf16 = false);
  GradientShares(const GradientShares&) = delete;
  GradientShares& operator=(const GradientShares&) = delete;

  // Begins a micro-batch. The first one overwrites the gradients. After the last one, this rank's
  // slice has the sum over all ranks. Sums over ranks follow the work on LibTorch's current stream.
  void BeginMicroBatch(bool first, bool last);
  // Returns the buffer for the gradient of a parameter in this micro-batch, in its shape.
  at::Tensor Slot(int param);
  // See ShareReducer. The gradient is in the slot of this parameter.
  void MarkReady(int param) { reducer_.MarkReady(param); }
  void FinishMicroBatch() { reducer_.FinishMicroBatch(); }

  // Seconds the host has waited since the last call of this function.
  double TakeWaitSeconds() { return reducer_.TakeWaitSeconds(); }
  int64_t most_slot_bytes() const { return most_slot_bytes_; }  // largest sum of slots so far

 private:
  struct BucketSum {
    at::Tensor gradients;  // [bucket]; undefined until its first gradient
    at::Tensor own;        // this rank's range of the sum, in the arena or a buffer
    at::Tensor range;      // the sum of the range over the replica group: in the arena, or in bf16
  };
  TensorRef Sent(int bucket) override;
  TensorRef Received(int bucket) override;
  void Accept(int bucket) override;
  TensorRef SentInReplicas(int bucket) override;
  void AcceptInReplicas(int bucket) override;
  at::Tensor HeldRange(int bucket) const;
  at::Tensor UpdatedPart(int bucket, const at::Tensor& range) const;
  void Grow(int64_t bytes);  // counts allocated slots

  ParameterArena& arena_;
  dist::ShardGroups groups_;
  bool in_bf16_;
  std::vector<BucketSum> sums_;
  dist::ShareReducer reducer_;  // destroyed before sums_, whose memory its operations use
  bool first_ = true;
  int64_t slot_bytes_ = 0, most_slot_bytes_ = 0;
};

}  // namespace halflife::train
