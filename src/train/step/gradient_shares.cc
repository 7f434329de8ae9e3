#include "train/step/gradient_shares.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "dist/gradient_reducer.h"
#include "ops/torch/tensor_ref.h"

namespace halflife::train {

GradientShares::GradientShares(ParameterArena& arena, dist::ShardGroups groups, bool in_bf16)
    : arena_(arena),
      groups_(groups),
      in_bf16_(in_bf16),
      progress_(arena.layout()),
      sums_(arena.layout().buckets().size()) {
  HL_CHECK(arena.grads_division().divides() &&
               arena.grads_division().parts == groups.num_shards() &&
               arena.layout().num_slices() == groups.num_shards() * groups.num_replicas(),
           "GradientShares needs gradients divided over the shard group and one slice per rank; "
           "there are ",
           arena.layout().num_slices(), " slices and ", arena.grads_division().parts, " parts for ",
           groups.num_shards(), " x ", groups.num_replicas(), " ranks");
}

void GradientShares::BeginMicroBatch(bool first, bool last) {
  first_ = first;
  last_ = last;
  producer_ = ops::CurrentStream(ops::RefOf(arena_.grads()).device);
  num_launched_ = num_settled_ = 0;
  progress_.Begin();
}

at::Tensor GradientShares::Slot(int param) {
  const dist::ParameterLayout& layout = arena_.layout();
  const dist::Bucket& bucket = layout.buckets()[progress_.bucket_of(param)];
  at::Tensor& gradients = sums_[progress_.bucket_of(param)].gradients;
  if (!gradients.defined()) {
    // Zeros, because padding is summed too.
    gradients = at::zeros({bucket.end - bucket.begin}, arena_.grads().options());
    Grow(static_cast<int64_t>(gradients.nbytes()));
  }
  const dist::ParamSpec& spec = layout.specs()[param];
  return gradients.narrow(0, layout.offset(param) - bucket.begin, spec.count()).view(spec.shape);
}

void GradientShares::Grow(int64_t bytes) {
  slot_bytes_ += bytes;
  most_slot_bytes_ = std::max(most_slot_bytes_, slot_bytes_);
}

void GradientShares::MarkReady(int param) {
  progress_.MarkReady(param);
  LaunchReady();
}

void GradientShares::LaunchReady() {
  while (num_launched_ < static_cast<int>(sums_.size()) && progress_.complete(num_launched_)) {
    while (num_launched_ - num_settled_ >= ParallelConfig::kBucketsInFlight) Settle(num_settled_++);
    Launch(num_launched_++);
  }
}

at::Tensor GradientShares::HeldRange(int bucket) const {
  const auto range = groups_.HeldOf(arena_.layout(), arena_.layout().buckets()[bucket]);
  return arena_.grads().narrow(0, range.slice_begin, range.count);
}

// The slice that this rank updates, within the range that it holds.
at::Tensor GradientShares::UpdatedPart(int bucket, const at::Tensor& range) const {
  const dist::Bucket& of = arena_.layout().buckets()[bucket];
  const auto held = groups_.HeldOf(arena_.layout(), of),
             own = groups_.UpdatedOf(arena_.layout(), of);
  return range.narrow(0, own.arena_begin - held.arena_begin, own.count);
}

void GradientShares::Launch(int bucket) {
  BucketSum& sum = sums_[bucket];
  const at::Tensor share = HeldRange(bucket);
  if (in_bf16_) {
    const at::Tensor travelling = sum.gradients.to(at::kBFloat16);
    Grow(static_cast<int64_t>(travelling.nbytes()));
    slot_bytes_ -= static_cast<int64_t>(sum.gradients.nbytes());
    sum.gradients = travelling;
  }
  const bool in_place = first_ && !in_bf16_;
  sum.own = in_place ? share : at::empty(share.sizes(), sum.gradients.options());
  sum.work = groups_.shard->ReduceScatter(ops::RefOf(sum.gradients), ops::RefOf(sum.own),
                                          dist::ReduceOp::kSum, {dist::kGradientBucket, bucket},
                                          producer_);
}

void GradientShares::Settle(int bucket) {
  BucketSum& sum = sums_[bucket];
  wait_seconds_ += dist::AwaitResult(std::move(sum.work), producer_);
  if (!first_) {
    HeldRange(bucket).add_(sum.own);
  } else if (in_bf16_) {
    HeldRange(bucket).copy_(sum.own);
  }
  slot_bytes_ -= static_cast<int64_t>(sum.gradients.nbytes());
  sum = {};
  if (last_ && groups_.replica != nullptr) LaunchInReplicas(bucket);
}

void GradientShares::LaunchInReplicas(int bucket) {
  BucketSum& sum = sums_[bucket];
  const at::Tensor range = HeldRange(bucket);
  sum.range = in_bf16_ ? range.to(at::kBFloat16) : range;
  sum.replica_work = groups_.replica->ReduceScatter(
      ops::RefOf(sum.range), ops::RefOf(UpdatedPart(bucket, sum.range)), dist::ReduceOp::kSum,
      {dist::kGradientBucket, bucket}, producer_);
}

void GradientShares::SettleInReplicas(int bucket) {
  BucketSum& sum = sums_[bucket];
  wait_seconds_ += dist::AwaitResult(std::move(sum.replica_work), producer_);
  if (in_bf16_) UpdatedPart(bucket, HeldRange(bucket)).copy_(UpdatedPart(bucket, sum.range));
  sum = {};
}

void GradientShares::FinishMicroBatch() {
  progress_.RequireAll();
  while (num_settled_ < num_launched_) Settle(num_settled_++);
  if (!last_ || groups_.replica == nullptr) return;
  for (int bucket = 0; bucket < num_settled_; ++bucket) SettleInReplicas(bucket);
}

double GradientShares::TakeWaitSeconds() { return std::exchange(wait_seconds_, 0); }

}  // namespace halflife::train
