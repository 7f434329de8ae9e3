#include "dist/parameter_gather.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "dist/parameter_layout.h"

namespace halflife::dist {

ParameterGather::ParameterGather(const ParameterLayout& layout, ShardGroups groups,
                                 std::vector<GatheredArray> arrays,
                                 const std::vector<std::vector<int>>& params_of_layer, int prefetch)
    : layout_(layout),
      groups_(groups),
      arrays_(std::move(arrays)),
      prefetch_(prefetch),
      gathers_(layout.buckets().size()) {
  const int num_ranks = groups.num_shards() * groups.num_replicas();
  HL_CHECK(layout.num_slices() == num_ranks, "an arena of ", layout.num_slices(), " slices for ",
           num_ranks, " ranks");
  const std::vector<int> bucket_of = BucketsOfParameters(layout);
  for (const std::vector<int>& params : params_of_layer) {
    std::vector<int>& buckets = buckets_of_layer_.emplace_back();
    for (const int param : params) buckets.push_back(bucket_of[param]);
    // Forward reads the end of the arena first.
    std::ranges::sort(buckets, std::greater());
    buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
  }
}

const GatheredArray& ParameterGather::ArrayOf(const Bucket& bucket) const {
  for (const GatheredArray& array : arrays_)
    if (array.begin <= bucket.begin && bucket.end <= array.end) return array;
  HL_FAIL(ExitCode::kInternal, "no array holds the bucket of elements ", bucket.begin, " to ",
          bucket.end);
}

// Returns a part of the range that this rank holds, or of the whole bucket if the array has it.
TensorRef ParameterGather::PartOf(const GatheredArray& array, const Bucket& bucket,
                                  const ParameterLayout::SliceRange& part) const {
  if (!array.held) return array.data.Slice(part.arena_begin - array.begin, part.count);
  const auto held = groups_.HeldOf(layout_, bucket);
  return array.data.Slice(
      held.slice_begin - array.begin / groups_.num_shards() + part.arena_begin - held.arena_begin,
      part.count);
}

void ParameterGather::Start(cudaStream_t consumer) {
  AwaitAll();  // an update without a forward pass since the last one
  consumer_ = consumer;
  for (size_t bucket = 0; bucket < gathers_.size(); ++bucket)
    if (!started_ || !layout_.buckets()[bucket].frozen) gathers_[bucket].state = State::kStale;
  started_ = true;
}

void ParameterGather::StartAll(cudaStream_t consumer) {
  started_ = false;
  Start(consumer);
}

void ParameterGather::IssueInReplicas(const std::vector<int>& buckets) {
  const auto issue = [&] {
    for (const int index : buckets) {
      Gather& gather = gathers_[index];
      gather.state = State::kInReplicas;
      const Bucket& bucket = layout_.buckets()[index];
      const GatheredArray& array = ArrayOf(bucket);
      gather.work =
          groups_.replica->AllGather(PartOf(array, bucket, groups_.UpdatedOf(layout_, bucket)),
                                     PartOf(array, bucket, groups_.HeldOf(layout_, bucket)),
                                     {kParameterBucket, index}, consumer_);
    }
  };
  if (!buckets.empty()) groups_.replica->Batch(issue);
}

void ParameterGather::Issue(const std::vector<int>& buckets) {
  std::vector<int> whole;  // of arrays with whole buckets; other buckets need no second gather
  for (const int index : buckets) {
    gathers_[index].state = State::kIssued;
    if (ArrayOf(layout_.buckets()[index]).held) continue;
    AwaitWork(gathers_[index]);
    whole.push_back(index);
  }
  const auto issue = [&] {
    for (const int index : whole) {
      const Bucket& bucket = layout_.buckets()[index];
      const GatheredArray& array = ArrayOf(bucket);
      gathers_[index].work = groups_.shard->AllGather(
          PartOf(array, bucket, groups_.HeldOf(layout_, bucket)),
          array.data.Slice(bucket.begin - array.begin, bucket.end - bucket.begin),
          {kParameterBucket, index}, consumer_);
    }
  };
  if (!whole.empty()) groups_.shard->Batch(issue);
}

void ParameterGather::AwaitWork(Gather& gather) {
  wait_seconds_ += AwaitResult(std::move(gather.work), consumer_);
}

// Returns the buckets of the layers [layer, layer + ahead] whose gathers have not reached `state`.
std::vector<int> ParameterGather::BucketsBefore(State state, int layer, int ahead) const {
  std::vector<int> buckets;
  const int end = std::min(layer + ahead + 1, static_cast<int>(buckets_of_layer_.size()));
  for (int next = layer; next < end; ++next)
    for (const int bucket : buckets_of_layer_[next])
      if (gathers_[bucket].state < state && std::ranges::count(buckets, bucket) == 0)
        buckets.push_back(bucket);
  return buckets;
}

void ParameterGather::Await(int layer) {
  if (groups_.replica != nullptr)
    IssueInReplicas(BucketsBefore(State::kInReplicas, layer, 2 * prefetch_));
  Issue(BucketsBefore(State::kIssued, layer, prefetch_));
  for (const int bucket : BucketsBefore(State::kDone, layer, 0)) {
    AwaitWork(gathers_[bucket]);
    gathers_[bucket].state = State::kDone;
  }
}

void ParameterGather::AwaitAll() {
  for (int layer = 0; layer < std::ssize(buckets_of_layer_); ++layer) Await(layer);
}

double ParameterGather::TakeWaitSeconds() { return std::exchange(wait_seconds_, 0); }

}  // namespace halflife::dist
