#include "train/step/gradient_shares.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "ops/torch/tensor_ref.h"

namespace halflife::train {

GradientShares::GradientShares(ParameterArena& arena, dist::Communicator& comm, bool in_bf16)
    : arena_(arena),
      comm_(comm),
      in_bf16_(in_bf16),
      progress_(arena.layout()),
      sums_(arena.layout().buckets().size()) {
  HL_CHECK(arena.grads_sliced_end() == arena.layout().num_elements() &&
               arena.layout().num_slices() == comm.size(),
           "GradientShares needs sliced gradients and one slice per rank; there are ",
           arena.layout().num_slices(), " slices for ", comm.size(), " ranks");
}

void GradientShares::BeginMicroBatch(bool first) {
  first_ = first;
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

at::Tensor GradientShares::OwnSlice(int bucket) const {
  const auto range = arena_.layout().SliceOf(arena_.layout().buckets()[bucket], comm_.rank());
  return arena_.grads().narrow(0, range.slice_begin, range.count);
}

void GradientShares::Launch(int bucket) {
  BucketSum& sum = sums_[bucket];
  const at::Tensor share = OwnSlice(bucket);
  if (in_bf16_) {
    const at::Tensor travelling = sum.gradients.to(at::kBFloat16);
    Grow(static_cast<int64_t>(travelling.nbytes()));
    slot_bytes_ -= static_cast<int64_t>(sum.gradients.nbytes());
    sum.gradients = travelling;
  }
  const bool in_place = first_ && !in_bf16_;
  sum.own = in_place ? share : at::empty(share.sizes(), sum.gradients.options());
  sum.work = comm_.ReduceScatter(ops::RefOf(sum.gradients), ops::RefOf(sum.own),
                                 dist::ReduceOp::kSum, {"grad_bucket", bucket}, producer_);
}

void GradientShares::Settle(int bucket) {
  BucketSum& sum = sums_[bucket];
  const Stopwatch stopwatch;
  sum.work.WaitOn(producer_);
  // Waits with the deadline, because a stream would wait for a dead peer without a limit.
  sum.work.WaitHost();
  wait_seconds_ += stopwatch.Seconds();
  if (!first_) {
    OwnSlice(bucket).add_(sum.own);
  } else if (in_bf16_) {
    OwnSlice(bucket).copy_(sum.own);
  }
  slot_bytes_ -= static_cast<int64_t>(sum.gradients.nbytes());
  sum = {};
}

void GradientShares::FinishMicroBatch() {
  progress_.RequireAll();
  while (num_settled_ < num_launched_) Settle(num_settled_++);
}

double GradientShares::TakeWaitSeconds() { return std::exchange(wait_seconds_, 0); }

}  // namespace halflife::train
