#include "dist/gradient_reducer.h"

#include "core/clock.h"

namespace halflife::dist {

GradientReducer::GradientReducer(const ParameterLayout& layout, Communicator& comm, TensorRef grads,
                                 ReducedTo to, GradientWire* wire)
    : layout_(layout), comm_(comm), grads_(grads), to_(to), wire_(wire), progress_(layout) {
  HL_CHECK(grads.dtype == DType::kF32 && grads.count == layout.num_elements(),
           "the gradient arena has ", grads.count, " elements of ", Name(grads.dtype),
           "; the layout wants ", layout.num_elements(), " of fp32");
}

void GradientReducer::BeginStep(cudaStream_t producer) {
  HL_CHECK(!active_, "BeginStep before the last step's Finish");
  producer_ = producer;
  active_ = true;
  exposed_seconds_ = 0;
  works_.clear();
  progress_.Begin();
}

void GradientReducer::MarkReady(int param) {
  HL_CHECK(active_, "a gradient became ready outside a step");
  progress_.MarkReady(param);
  LaunchReady();
}

void GradientReducer::MarkAllReady() {
  for (int param = 0; param < static_cast<int>(layout_.specs().size()); ++param) MarkReady(param);
}

void GradientReducer::LaunchReady() {
  const std::vector<Bucket>& buckets = layout_.buckets();
  while (works_.size() < buckets.size() && progress_.complete(static_cast<int>(works_.size()))) {
    works_.push_back(Launch(static_cast<int>(works_.size())));
  }
}

Work GradientReducer::Launch(int index) {
  const Bucket& bucket = layout_.buckets()[index];
  const int64_t count = bucket.end - bucket.begin;
  const TensorRef all =
      wire_ != nullptr ? wire_->Load(bucket.begin, count) : grads_.Slice(bucket.begin, count);
  const OpTag tag = {"grad_bucket", index};
  if (to_ == ReducedTo::kAllRanks) return comm_.AllReduce(all, ReduceOp::kSum, tag, producer_);
  const Range own = ReceivedOf(bucket);
  return comm_.ReduceScatter(all, all.Slice(own.begin - bucket.begin, own.count), ReduceOp::kSum,
                             tag, producer_);
}

GradientReducer::Range GradientReducer::ReceivedOf(const Bucket& bucket) const {
  if (to_ == ReducedTo::kAllRanks) return {bucket.begin, bucket.end - bucket.begin};
  const ParameterLayout::SliceRange slice = layout_.SliceOf(bucket, comm_.rank());
  return {slice.arena_begin, slice.count};
}

void GradientReducer::Finish() {
  HL_CHECK(active_, "Finish without BeginStep");
  progress_.RequireAll();
  for (size_t i = 0; i < works_.size(); ++i) {
    const Stopwatch stopwatch;
    works_[i].WaitOn(producer_);
    // The stream waits too, but only WaitHost has a deadline: a stream would wait for a lost peer
    // indefinitely.
    works_[i].WaitHost();
    exposed_seconds_ += stopwatch.Seconds();
    if (wire_ == nullptr) continue;
    const Range received = ReceivedOf(layout_.buckets()[i]);
    wire_->Store(received.begin, received.count);
  }
  works_.clear();
  active_ = false;
}

}  // namespace halflife::dist
