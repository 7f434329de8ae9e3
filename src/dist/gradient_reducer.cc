#include "dist/gradient_reducer.h"

#include "core/clock.h"

namespace halflife::dist {

GradientReducer::GradientReducer(const ParameterLayout& layout, Communicator& comm, TensorRef grads,
                                 ReducedTo to)
    : layout_(layout), comm_(comm), grads_(grads), to_(to), progress_(layout) {
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

void GradientReducer::LaunchReady() {
  const std::vector<Bucket>& buckets = layout_.buckets();
  while (works_.size() < buckets.size() && progress_.complete(static_cast<int>(works_.size()))) {
    works_.push_back(Launch(static_cast<int>(works_.size())));
  }
}

Work GradientReducer::Launch(int index) {
  const Bucket& bucket = layout_.buckets()[index];
  const TensorRef all = grads_.Slice(bucket.begin, bucket.end - bucket.begin);
  const OpTag tag = {"grad_bucket", index};
  if (to_ == ReducedTo::kAllRanks) return comm_.AllReduce(all, ReduceOp::kSum, tag, producer_);
  const ParameterLayout::SliceRange slice = layout_.SliceOf(bucket, comm_.rank());
  return comm_.ReduceScatter(all, grads_.Slice(slice.arena_begin, slice.count), ReduceOp::kSum, tag,
                             producer_);
}

void GradientReducer::Finish() {
  HL_CHECK(active_, "Finish without BeginStep");
  progress_.RequireAll();
  const Stopwatch stopwatch;
  for (Work& work : works_) {
    work.WaitOn(producer_);
    work.WaitHost();  // with the deadline: a stream that waits for a dead peer would wait for ever
  }
  exposed_seconds_ = stopwatch.Seconds();
  works_.clear();
  active_ = false;
}

}  // namespace halflife::dist
