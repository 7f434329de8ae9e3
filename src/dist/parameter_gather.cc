#include "dist/parameter_gather.h"

#include <utility>

#include "core/clock.h"
#include "dist/parameter_layout.h"

namespace halflife::dist {

ParameterGather::ParameterGather(const ParameterLayout& layout, Communicator& comm,
                                 std::vector<GatheredArray> arrays)
    : layout_(layout),
      comm_(comm),
      arrays_(std::move(arrays)),
      bucket_of_(BucketsOfParameters(layout)),
      works_(layout.buckets().size()) {
  HL_CHECK(layout.num_slices() == comm.size(), "an arena of ", layout.num_slices(), " slices for ",
           comm.size(), " ranks");
}

const GatheredArray& ParameterGather::ArrayOf(const Bucket& bucket) const {
  for (const GatheredArray& array : arrays_)
    if (array.begin <= bucket.begin && bucket.end <= array.end) return array;
  HL_FAIL(ExitCode::kInternal, "no array holds the bucket of elements ", bucket.begin, " to ",
          bucket.end);
}

void ParameterGather::Start(cudaStream_t consumer) {
  consumer_ = consumer;
  for (size_t index = works_.size(); index-- > 0;) {
    const Bucket& bucket = layout_.buckets()[index];
    const ParameterLayout::SliceRange slice = layout_.SliceOf(bucket, comm_.rank());
    const GatheredArray& array = ArrayOf(bucket);
    works_[index] =
        comm_.AllGather(array.data.Slice(slice.arena_begin - array.begin, slice.count),
                        array.data.Slice(bucket.begin - array.begin, bucket.end - bucket.begin),
                        {kParameterBucket, static_cast<int>(index)}, consumer_);
  }
}

void ParameterGather::AwaitBucket(int bucket) {
  const Stopwatch stopwatch;
  Work work = std::exchange(works_[bucket], Work());
  work.WaitOn(consumer_);
  work.WaitHost();  // with a deadline, which a stream that waits for a lost peer does not have
  wait_seconds_ += stopwatch.Seconds();
}

void ParameterGather::Await(int param) { AwaitBucket(bucket_of_[param]); }

void ParameterGather::AwaitAll() {
  for (size_t bucket = 0; bucket < works_.size(); ++bucket) AwaitBucket(static_cast<int>(bucket));
}

double ParameterGather::TakeWaitSeconds() { return std::exchange(wait_seconds_, 0); }

}  // namespace halflife::dist
