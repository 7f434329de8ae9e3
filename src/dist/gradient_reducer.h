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

}  // namespace halflife::dist
