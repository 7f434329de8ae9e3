#include "train/step/gradient_shares.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/error.h"
#include "ops/torch/tensor_views.h"

namespace halflife::train {

GradientShares::GradientShares(ParameterArena& arena, dist::ShardGroups groups, bool in_bf16)
    : arena_(arena),
      groups_(groups),
      in_bf16_(in_bf16),
      sums_(arena.layout().buckets().size()),
      reducer_(arena.layout(), groups, *this, ParallelConfig::kBucketsInFlight) {
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
  reducer_.BeginMicroBatch(last, ops::CurrentStream(ops::RefOf(arena_.grads()).device));
}

at::Tensor GradientShares::Slot(int param) {
  const dist::ParameterLayout& layout = arena_.layout();
  const dist::Bucket& bucket = layout.buckets()[reducer_.bucket_of(param)];
  at::Tensor& gradients = sums_[reducer_.bucket_of(param)].gradients;
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

at::Tensor GradientShares::HeldRange(int bucket) const {
  const auto range = groups_.HeldOf(arena_.layout(), arena_.layout().buckets()[bucket]);
  const int64_t place = arena_.layout().PlaceOf(range.arena_begin, arena_.grads_division());
  return arena_.grads().narrow(0, place, range.count);
}

// Returns the slice that this rank updates, within the range that it holds.
at::Tensor GradientShares::UpdatedPart(int bucket, const at::Tensor& range) const {
  const dist::Bucket& of = arena_.layout().buckets()[bucket];
  const auto held = groups_.HeldOf(arena_.layout(), of),
             own = groups_.UpdatedOf(arena_.layout(), of);
  return range.narrow(0, own.arena_begin - held.arena_begin, own.count);
}

TensorRef GradientShares::Sent(int bucket) {
  BucketSum& sum = sums_[bucket];
  if (in_bf16_) {
    const at::Tensor travelling = sum.gradients.to(at::kBFloat16);
    Grow(static_cast<int64_t>(travelling.nbytes()));
    slot_bytes_ -= static_cast<int64_t>(sum.gradients.nbytes());
    sum.gradients = travelling;
  }
  return ops::RefOf(sum.gradients);
}

TensorRef GradientShares::Received(int bucket) {
  BucketSum& sum = sums_[bucket];
  const at::Tensor share = HeldRange(bucket);
  const bool in_place = first_ && !in_bf16_;
  sum.own = in_place ? share : at::empty(share.sizes(), sum.gradients.options());
  return ops::RefOf(sum.own);
}

void GradientShares::Accept(int bucket) {
  BucketSum& sum = sums_[bucket];
  if (!first_) {
    HeldRange(bucket).add_(sum.own);
  } else if (in_bf16_) {
    HeldRange(bucket).copy_(sum.own);
  }
  slot_bytes_ -= static_cast<int64_t>(sum.gradients.nbytes());
  sum = {};
}

TensorRef GradientShares::SentInReplicas(int bucket) {
  const at::Tensor range = HeldRange(bucket);
  sums_[bucket].range = in_bf16_ ? range.to(at::kBFloat16) : range;
  return ops::RefOf(sums_[bucket].range);
}

void GradientShares::AcceptInReplicas(int bucket) {
  BucketSum& sum = sums_[bucket];
  if (in_bf16_) UpdatedPart(bucket, HeldRange(bucket)).copy_(UpdatedPart(bucket, sum.range));
  sum = {};
}

}  // namespace halflife::train
