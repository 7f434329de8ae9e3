// Sums gradients for ZeRO stages 2 and 3, where a rank keeps only its range of every bucket. The
// sum of each micro-batch is over the shard group, and that of the last one also over the replica
// group (shard_groups.h). Buckets are sent in index order. Only a limited number of them has memory
// at the same time, which the caller provides.
#pragma once

#include <vector>

#include "dist/communicator.h"
#include "dist/parameter_layout.h"
#include "dist/shard_groups.h"

namespace halflife::dist {

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
  // All are borrowed. At most `most_in_flight` buckets are being summed in the shard group.
  ShareReducer(const ParameterLayout& layout, ShardGroups groups, ShareMemory& memory,
               int most_in_flight);

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
  const int most_in_flight_;
  cudaStream_t producer_ = nullptr;
  bool last_ = true;
  BucketProgress progress_;
  std::vector<Work> works_, replica_works_;  // by bucket
  int num_launched_ = 0, num_settled_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace halflife::dist
