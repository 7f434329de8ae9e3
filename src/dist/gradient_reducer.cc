#include "dist/gradient_reducer.h"

#include "core/clock.h"

namespace halflife::dist {

GradientReducer::GradientReducer(const ParameterLayout& layout, Communicator& comm, TensorRef grads,
                                 cudaStream_t producer)
    : layout_(layout),
      comm_(comm),
      grads_(grads),
      producer_(producer),
      bucket_of_(layout.specs().size()) {
  HL_CHECK(grads.dtype == DType::kF32 && grads.count == layout.num_elements(),
           "the gradient arena has ", grads.count, " elements of ", Name(grads.dtype),
           "; the layout wants ", layout.num_elements(), " of fp32");
  for (size_t bucket = 0; bucket < layout.buckets().size(); ++bucket) {
    for (const int param : layout.buckets()[bucket].params) {
      bucket_of_[param] = static_cast<int>(bucket);
    }
  }
}

void GradientReducer::BeginStep() {
  HL_CHECK(!active_, "BeginStep before the last step's Finish");
  active_ = true;
  exposed_seconds_ = 0;
  works_.clear();
  ready_.assign(layout_.specs().size(), false);
  remaining_.clear();
  for (const Bucket& bucket : layout_.buckets()) {
    remaining_.push_back(static_cast<int>(bucket.params.size()));
  }
}

void GradientReducer::MarkReady(int param) {
  HL_CHECK(active_, "a gradient became ready outside a step");
  HL_CHECK(!ready_.at(param), "parameter '", layout_.specs()[param].name,
           "' accumulated a gradient after it was complete; is grad_uses ",
           layout_.specs()[param].grad_uses, " too small?");
  ready_[param] = true;
  if (--remaining_[bucket_of_[param]] == 0) LaunchReady();
}

void GradientReducer::LaunchReady() {
  const std::vector<Bucket>& buckets = layout_.buckets();
  while (works_.size() < buckets.size() && remaining_[works_.size()] == 0) {
    const int index = static_cast<int>(works_.size());
    const Bucket& bucket = buckets[index];
    works_.push_back(comm_.AllReduce(grads_.Slice(bucket.begin, bucket.end - bucket.begin),
                                     ReduceOp::kSum, {"grad_bucket", index}, producer_));
  }
}

void GradientReducer::Finish() {
  HL_CHECK(active_, "Finish without BeginStep");
  std::string missing;
  for (size_t param = 0; param < ready_.size(); ++param) {
    if (!ready_[param]) missing += Concat(missing.empty() ? "" : ", ", layout_.specs()[param].name);
  }
  HL_CHECK(missing.empty(), "no gradient reached: ", missing,
           "; does the loss depend on these parameters?");
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
