// Sums the gradients of a step over micro-batches and ranks: everything between autograd and the
// optimizer. Backward writes each gradient straight into the arena (ops/torch/gradient_sink.h), so
// there is no second copy of the gradients, and buckets are summed over ranks while backward still
// runs. On the CPU, the order of every sum is fixed.
//
// The combinations of settings (train/config/run_config_validate.cc refuses all others):
//
// | settings          | zero_stage | micro-batches of a rank        | sums over ranks           |
// |-------------------|------------|--------------------------------|---------------------------|
// | defaults          | 0, 1       | pairwise; on CUDA one by one   | during the last backward  |
// | defaults          | 2, 3       | one by one, own ranges         | during every backward     |
// | parallel.slices   | 0 to 3     | pairwise, after the ranks' sum | during every backward     |
// | train.cuda_graphs | 0, 1       | one by one                     | during the last backward; |
// |                   |            |                                | on one rank after it      |
//
// parallel.grad_reduce: "bf16" rounds the shares of the ranks in all cases but parallel.slices.
// Afterwards, arena.grads() holds all sums with zero_stage 0. Otherwise, only the slices that the
// rank updates are valid. With 2 and 3, the arena holds only the ranges around them. With several
// shard groups (parallel.shard), every sum over ranks is one over the shard group, and only the
// last one of a step continues over the replica group.
//
// "Pairwise" is the binary tree of core/pairwise_sum.h, in which ranks are summed too: on the CPU,
// powers of two of either change no bit. It takes one more arena for each doubling of the number of
// micro-batches. On CUDA, NCCL determines the order over ranks unless parallel.grad_reduce is
// "ordered".
//
//   GradientSync gradients(arena, communicator, {});
//   gradients.Attach(model.parameters());
//   for (int64_t i = 0; i < n; ++i) {
//     gradients.BeginMicroBatch(i, n);
//     loss.backward();
//     gradients.EndMicroBatch();
//   }
//   gradients.Finish();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dist/communicator.h"
#include "dist/gradient_reducer.h"
#include "model/parameters.h"
#include "ops/torch/gradient_sink.h"
#include "train/config/run_config.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

// Gradients for ZeRO stages 2 and 3: each rank keeps only its part. A bucket has memory from its
// first gradient until its sum over ranks has been sent to the ranks that hold its parts. Every
// micro-batch is summed over the shard group, and each rank accumulates the range that it holds.
// After the last micro-batch, the ranges are summed over the replica group
// (dist::ShareReducer).
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
  int64_t max_slot_bytes() const { return max_slot_bytes_; }  // largest sum of slots so far

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
  int64_t slot_bytes_ = 0, max_slot_bytes_ = 0;
};

class GradientSync {
 public:
  struct Options {
    bool in_bf16 = false;                // parallel.grad_reduce: "bf16"; ignored on one rank
    bool sums_each_micro_batch = false;  // parallel.slices
    bool one_by_one = false;             // train.cuda_graphs: do not sum micro-batches pairwise
    // train.recompute: each layer that reads a parameter adds its own gradient. Otherwise autograd
    // adds them first.
    bool recomputes = false;

    static Options Of(const RunConfig& config);
  };
  // `arena` and the groups are borrowed. Gradients are divided over the ranks if the arena's are.
  GradientSync(ParameterArena& arena, dist::ShardGroups groups, const Options& options);
  ~GradientSync();  // detaches the parameters
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  // Makes autograd write the gradients of these parameters, which are those of the arena's layout,
  // to this object. Borrowed.
  void Attach(model::ParameterSet& parameters);

  // Called between forward and backward of micro-batch `index` of the `count` of a step, in order.
  // The first one (with sums_each_micro_batch, every one) overwrites the arena's gradients, so they
  // need not be zeroed. Sums over ranks follow the current stream.
  void BeginMicroBatch(int64_t index, int64_t count);
  // Begins a micro-batch that is being recorded. It adds to the gradients in the arena for any
  // index, and is not summed over ranks. Only with one_by_one, or on CUDA.
  void BeginRecorded();
  // Throws an Error that names the parameters which received no gradient.
  void EndMicroBatch();

  bool sums_each_micro_batch() const { return options_.sums_each_micro_batch; }
  // With sums_each_micro_batch, called after EndMicroBatch: waits for the sum over ranks and adds
  // it to those of earlier micro-batches.
  void JoinMicroBatch();
  // Sums over ranks after replays of a recorded micro-batch, which call none of the functions
  // above.
  void SumReplayed();
  // Waits for the sums over ranks.
  void Finish();

  // Returns the seconds that the host waited for sums over ranks since the last call.
  double TakeWaitSeconds();

  // For rehearsals without autograd: the gradient of a parameter has been computed.
  void MarkComputed(int param);
  int64_t wire_bytes() const;  // of the bf16 copy of the gradients; 0 without one
  // Largest number of bytes of buckets that existed at a time; 0 unless zero_stage is 2 or 3.
  int64_t max_bucket_bytes() const { return shares_ ? shares_->max_slot_bytes() : 0; }

 private:
  class Bf16Wire;
  class Sink;
  ops::GradientSink::Target Next(int param);
  void Written(int param);
  int UsesOf(int param) const;  // gradients that one backward adds
  // Index and count within the sum that a rank forms by itself.
  int64_t own_index() const { return options_.sums_each_micro_batch ? 0 : index_; }
  int64_t own_count() const { return options_.sums_each_micro_batch ? 1 : count_; }

  ParameterArena& arena_;
  const Options options_;
  const bool pairwise_;                           // micro-batches are summed before ranks, in pairs
  model::ParameterSet* parameters_ = nullptr;     // attached
  std::optional<GradientShares> shares_;          // zero_stage 2 and 3
  std::unique_ptr<Bf16Wire> wire_;                // with zero_stage 0 or 1
  std::optional<dist::GradientReducer> reducer_;  // with zero_stage 0 or 1
  std::vector<at::Tensor> slots_;  // by parameter: its view of arena.grads(); empty with shares_
  // By parameter: the sum of its gradients within a micro-batch, which then joins those of earlier
  // ones. Autograd sums in the same order, so recomputation changes no bit. Undefined: not needed.
  std::vector<at::Tensor> own_sums_;
  std::vector<int> uses_;  // by parameter: gradients received in this micro-batch
  // Finished subtrees of earlier micro-batches: [level][parameter] with pairwise_, and [level] of
  // the whole arena with sums_each_micro_batch.
  std::vector<std::vector<at::Tensor>> levels_;
  std::vector<at::Tensor> joined_levels_;
  int64_t index_ = 0, count_ = 1;  // of the current micro-batch
  bool reduces_ = false;           // its gradients complete sums, which reducer_ sends
};

// Adds `term`, which is number `index` of `count` and arrives in order, to the subtrees that it
// completes. The result is stored in `level_of` the next level, or stays in `term` if it is the
// last. There are NumLevels(count) levels. The tree is that of core/pairwise_sum.h.
void JoinPairwise(const at::Tensor& term, int64_t index, int64_t count,
                  const std::function<at::Tensor(int level)>& level_of);

}  // namespace halflife::train
