#include "dist/share_reducer.h"

#include <utility>

#include "dist/gradient_reducer.h"

namespace halflife::dist {

ShareReducer::ShareReducer(const ParameterLayout& layout, ShardGroups groups, ShareMemory& memory,
                           int most_in_flight)
    : layout_(layout),
      groups_(groups),
      memory_(memory),
      most_in_flight_(most_in_flight),
      progress_(layout),
      works_(layout.buckets().size()),
      replica_works_(layout.buckets().size()) {}

void ShareReducer::BeginMicroBatch(bool last, cudaStream_t producer) {
  last_ = last;
  producer_ = producer;
  num_launched_ = num_settled_ = 0;
  progress_.Begin();
}

void ShareReducer::MarkReady(int param) {
  progress_.MarkReady(param);
  while (num_launched_ < std::ssize(works_) && progress_.complete(num_launched_)) {
    while (num_launched_ - num_settled_ >= most_in_flight_) Settle(num_settled_++);
    Launch(num_launched_++);
  }
}

void ShareReducer::Launch(int bucket) {
  if (layout_.buckets()[bucket].frozen) return;
  const TensorRef sent = memory_.Sent(bucket), received = memory_.Received(bucket);
  works_[bucket] = groups_.shard->ReduceScatter(sent, received, ReduceOp::kSum,
                                                {kGradientBucket, bucket}, producer_);
}

// Waits for the sum of a bucket and continues it in the replica group.
void ShareReducer::Settle(int bucket) {
  if (layout_.buckets()[bucket].frozen) return;
  wait_seconds_ += AwaitResult(std::move(works_[bucket]), producer_);
  memory_.Accept(bucket);
  if (!last_ || groups_.replica == nullptr) return;
  const Bucket& all = layout_.buckets()[bucket];
  const auto held = groups_.HeldOf(layout_, all), own = groups_.UpdatedOf(layout_, all);
  const TensorRef range = memory_.SentInReplicas(bucket);
  replica_works_[bucket] = groups_.replica->ReduceScatter(
      range, range.Slice(own.arena_begin - held.arena_begin, own.count), ReduceOp::kSum,
      {kGradientBucket, bucket}, producer_);
}

void ShareReducer::FinishMicroBatch() {
  progress_.RequireAll();
  while (num_settled_ < num_launched_) Settle(num_settled_++);
  if (!last_ || groups_.replica == nullptr) return;
  for (int bucket = 0; bucket < num_settled_; ++bucket) {
    if (layout_.buckets()[bucket].frozen) continue;
    wait_seconds_ += AwaitResult(std::move(replica_works_[bucket]), producer_);
    memory_.AcceptInReplicas(bucket);
  }
}

double ShareReducer::TakeWaitSeconds() { return std::exchange(wait_seconds_, 0); }

}  // namespace halflife::dist
