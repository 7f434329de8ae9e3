#include "dist/gradient_reducer.h"

#include <utility>

namespace halflife::dist {

// On a GPU, the number of buckets that are being reduced in the shard group when the next bucket
// starts in the replica group.
constexpr size_t kShardSumsAhead = 3;

GradientReducer::GradientReducer(const ParameterLayout& layout, ShardGroups groups, TensorRef grads,
                                 ReducedTo to, GradientWire* wire)
    : layout_(layout), groups_(groups), grads_(grads), to_(to), wire_(wire), progress_(layout) {
  HL_CHECK(grads.dtype == DType::kF32 && grads.count == layout.num_trained_elements(),
           "the gradient arena has ", grads.count, " elements of ", Name(grads.dtype),
           "; the layout wants ", layout.num_trained_elements(), " of fp32");
  HL_CHECK(groups.replica == nullptr || to == ReducedTo::kSlices,
           "replica groups sum only slices of gradients");
}

void GradientReducer::BeginStep(cudaStream_t producer) {
  HL_CHECK(!active_, "BeginStep before the last step's Finish");
  producer_ = producer;
  active_ = true;
  works_.clear();
  replica_works_.clear();
  sent_.clear();
  progress_.Begin();
}

void GradientReducer::MarkReady(int param) {
  HL_CHECK(active_, "a gradient became ready outside a step");
  progress_.MarkReady(param);
  LaunchReady();
}

void GradientReducer::MarkAllReady() {
  for (int param = 0; param < static_cast<int>(layout_.specs().size()); ++param)
    if (!layout_.frozen(param)) MarkReady(param);
}

void GradientReducer::LaunchReady() {
  const size_t num_buckets = layout_.buckets().size();
  while (works_.size() < num_buckets && progress_.complete(static_cast<int>(works_.size())))
    Launch(static_cast<int>(works_.size()));
  if (groups_.replica == nullptr) return;
  while (replica_works_.size() < works_.size()) {
    const size_t next = replica_works_.size();
    if (!grads_.device.is_cuda()) {
      if (!works_[next].Done()) return;
    } else {
      // NCCL needs the same order of operations on all ranks, so it depends on counts only.
      if (next + kShardSumsAhead >= works_.size()) return;
      wait_seconds_ += AwaitResult(std::move(works_[next]), producer_);
    }
    LaunchInReplicas();
  }
}

void GradientReducer::Launch(int index) {
  const Bucket& bucket = layout_.buckets()[index];
  if (bucket.frozen) {
    works_.emplace_back();
    sent_.emplace_back();
    return;
  }
  const int64_t count = bucket.end - bucket.begin;
  const TensorRef all = wire_ != nullptr ? wire_->Load(bucket.trained_begin, count)
                                         : grads_.Slice(bucket.trained_begin, count);
  sent_.push_back(all);
  const OpTag tag = {kGradientBucket, index};
  if (to_ == ReducedTo::kAllRanks) {
    works_.push_back(groups_.shard->AllReduce(all, ReduceOp::kSum, tag, producer_));
    return;
  }
  const auto held = groups_.HeldOf(layout_, bucket);
  works_.push_back(groups_.shard->ReduceScatter(
      all, all.Slice(held.arena_begin - bucket.begin, held.count), ReduceOp::kSum, tag, producer_));
}

void GradientReducer::LaunchInReplicas() {
  const size_t index = replica_works_.size();
  const Bucket& bucket = layout_.buckets()[index];
  if (bucket.frozen) {
    replica_works_.emplace_back();
    return;
  }
  const auto held = groups_.HeldOf(layout_, bucket), own = groups_.UpdatedOf(layout_, bucket);
  const TensorRef all = sent_[index];
  replica_works_.push_back(groups_.replica->ReduceScatter(
      all.Slice(held.arena_begin - bucket.begin, held.count),
      all.Slice(own.arena_begin - bucket.begin, own.count), ReduceOp::kSum,
      {kGradientBucket, static_cast<int>(index)}, producer_));
}

ParameterLayout::SliceRange GradientReducer::ReceivedOf(const Bucket& bucket) const {
  if (to_ == ReducedTo::kAllRanks)
    return {.arena_begin = bucket.trained_begin, .count = bucket.end - bucket.begin};
  ParameterLayout::SliceRange own = groups_.UpdatedOf(layout_, bucket);
  own.arena_begin += bucket.trained_begin - bucket.begin;
  return own;
}

void GradientReducer::Finish() {
  HL_CHECK(active_, "Finish without BeginStep");
  progress_.RequireAll();
  for (size_t i = 0; i < works_.size(); ++i) {
    wait_seconds_ += AwaitResult(std::move(works_[i]), producer_);
    if (groups_.replica != nullptr && i == replica_works_.size()) LaunchInReplicas();
  }
  for (Work& work : replica_works_) wait_seconds_ += AwaitResult(std::move(work), producer_);
  for (size_t i = 0; i < works_.size() && wire_ != nullptr; ++i) {
    if (layout_.buckets()[i].frozen) continue;
    const auto received = ReceivedOf(layout_.buckets()[i]);
    wire_->Store(received.arena_begin, received.count);
  }
  works_.clear();
  active_ = false;
}

ShareReducer::ShareReducer(const ParameterLayout& layout, ShardGroups groups, ShareMemory& memory,
                           int max_in_flight)
    : layout_(layout),
      groups_(groups),
      memory_(memory),
      max_in_flight_(max_in_flight),
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
    while (num_launched_ - num_settled_ >= max_in_flight_) Settle(num_settled_++);
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
