// Sums gradients over ranks, bucket by bucket, while backward is still running. Buckets are
// launched strictly in index order, so all ranks issue the same sequence regardless of the order in
// which their gradients become ready. Each rank receives all sums or, if each rank updates only its
// slice of the parameters, the sums of its slices. With replicas (shard_groups.h), a bucket is
// reduced in the shard group, and then the range that the rank holds in the replica group.
//
//   GradientReducer reducer(layout, comm, grads);
//   reducer.BeginStep(nullptr);  // before the last micro-batch's backward; the CPU has no stream
//   reducer.MarkReady(param);    // from each parameter's hook
//   reducer.Finish();            // throws Error kInternal naming parameters without a gradient
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/tensor_ref.h"
#include "dist/communicator.h"
#include "dist/parameter_layout.h"
#include "dist/shard_groups.h"

namespace halflife::dist {

// Converts gradients to the form in which they travel between ranks, if that differs from how they
// are stored.
class GradientWire {
 public:
  virtual ~GradientWire() = default;
  // Returns elements [begin, begin + count) of the gradients in the form in which they travel. The
  // returned memory does not move. Work is queued on the stream of the step.
  virtual TensorRef Load(int64_t begin, int64_t count) = 0;
  // Converts the received elements back into the gradients.
  virtual void Store(int64_t begin, int64_t count) = 0;
};

// OpTag::what of a bucket's sum.
inline constexpr char kGradientBucket[] = "grad_bucket";

enum class ReducedTo : uint8_t { kAllRanks, kSlices };

class GradientReducer {
 public:
  // All arguments are borrowed and must outlive the reducer. `grads` has the gradients of trained
  // buckets, layout.num_trained_elements() elements of fp32, and must not move. `wire` converts
  // them to the form in which they travel; null sends them unchanged. Replicas need kSlices.
  GradientReducer(const ParameterLayout& layout, ShardGroups groups, TensorRef grads,
                  ReducedTo to = ReducedTo::kAllRanks, GradientWire* wire = nullptr);

  // `producer` is the stream of this step: backward writes the gradients on it, and it reads their
  // sums after Finish. Null on the CPU. The caller may choose another stream for each step.
  void BeginStep(cudaStream_t producer);
  // Call when the parameter's gradient of this step is complete in the arena. A second call in the
  // same step throws an Error that names the parameter.
  void MarkReady(int param);
  // Marks all parameters as ready. For replayed backward passes, which call no hooks.
  void MarkAllReady();
  // Waits until every bucket is summed; on a GPU, only the producer stream waits. Afterwards the
  // arena holds the sum over ranks: everywhere, or with kSlices only in this rank's slice of each
  // bucket. The content of the other slices is then undefined.
  void Finish();

  // Returns the seconds that the host has waited since the last call.
  double TakeWaitSeconds() { return std::exchange(wait_seconds_, 0); }

 private:
  void LaunchReady();
  void Launch(int bucket);
  // Reduces the next bucket in the replica group, once the shard group has reduced it.
  void LaunchInReplicas();
  // Returns the part of a bucket's sum that this rank receives. arena_begin is its place in the
  // gradients.
  ParameterLayout::SliceRange ReceivedOf(const Bucket& bucket) const;

  const ParameterLayout& layout_;
  ShardGroups groups_;
  TensorRef grads_;
  ReducedTo to_;
  GradientWire* wire_;
  cudaStream_t producer_ = nullptr;  // stream of the current step
  BucketProgress progress_;
  // By bucket, for the buckets launched so far: the sums of the shard group and of the replica
  // group, and the memory of the whole bucket.
  std::vector<Work> works_, replica_works_;
  std::vector<TensorRef> sent_;
  bool active_ = false;
  double wait_seconds_ = 0;
};

// Sums gradients for ZeRO stages 2 and 3, where a rank keeps only its range of every bucket. The
// sum of each micro-batch is over the shard group, and that of the last one also over the replica
// group (shard_groups.h). Buckets are sent in index order. Only a limited number of them has memory
// at the same time, which the caller provides.

// Accesses the gradients of a rank. ShareReducer calls these functions once per bucket, in this
// order. On a GPU, they queue their work on the stream of the micro-batch.
class ShareMemory {
 public:
  virtual ~ShareMemory() = default;
  // Returns the gradients of a complete bucket, converted to the type in which they are sent.
  virtual TensorRef Sent(int bucket) = 0;
  // Returns the memory that receives the sum of the range that this rank holds.
  virtual TensorRef Received(int bucket) = 0;
  // Called when the sum has arrived. Adds it to the held range and frees the bucket.
  virtual void Accept(int bucket) = 0;
  // Only with replicas. Returns the held range, converted to the type in which it is sent. The part
  // that this rank updates receives the sum.
  virtual TensorRef SentInReplicas(int bucket) = 0;
  virtual void AcceptInReplicas(int bucket) = 0;
};

class ShareReducer {
 public:
  // All are borrowed. At most `max_in_flight` buckets are being summed in the shard group.
  ShareReducer(const ParameterLayout& layout, ShardGroups groups, ShareMemory& memory,
               int max_in_flight);

  // `last`: the ranges are complete and continue in the replica group. `producer`: the stream on
  // which backward writes the gradients; null on the CPU.
  void BeginMicroBatch(bool last, cudaStream_t producer);
  // Call when the parameter's gradient is complete. A second call in the same micro-batch throws an
  // Error that names the parameter.
  void MarkReady(int param);
  // Waits until the ranges hold the sums; on a GPU, only the producer waits. Throws Error kInternal
  // with the names of parameters without a gradient.
  void FinishMicroBatch();

  int bucket_of(int param) const { return progress_.bucket_of(param); }
  // Returns the seconds that the host has waited since the last call.
  double TakeWaitSeconds();

 private:
  void Launch(int bucket);
  void Settle(int bucket);

  const ParameterLayout& layout_;
  ShardGroups groups_;
  ShareMemory& memory_;
  const int max_in_flight_;
  cudaStream_t producer_ = nullptr;
  bool last_ = true;
  BucketProgress progress_;
  std::vector<Work> works_, replica_works_;  // by bucket
  int num_launched_ = 0, num_settled_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace halflife::dist
