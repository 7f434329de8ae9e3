// Gathers every rank's slices of the arena on all ranks, bucket by bucket, while the next forward
// pass already runs on the first layers. A gather is issued only a few layers before its weights
// are read, so that the messages of those layers need not wait for the gathers of all others.
//
//   ParameterGather gather(layout, comm, {{.begin = 0, .end = n, .data = weights}},
//                          params_of_layer);
//   gather.Start(nullptr);  // after the update of this rank's slices; the CPU has no stream
//   gather.Await(layer);    // before the layer's parameters are read, in the order of the layers
//
// With replicas (shard_groups.h), a bucket is gathered twice: first the range that the rank holds,
// from the ranks of its replica group, and then the bucket from the ranks of its shard group.
#pragma once

#include <vector>

#include "dist/communicator.h"
#include "dist/parameter_layout.h"
#include "dist/shard_groups.h"

namespace halflife::dist {

// OpTag::what of a bucket's gather. Plans use it to distinguish gathers from gradient sums.
inline constexpr char kParameterBucket[] = "param_bucket";

// The weights that ranks compute with: elements [begin, end) of the arena, which are whole buckets,
// in any dtype.
struct GatheredArray {
  int64_t begin = 0, end = 0;
  TensorRef data = {};  // borrowed, must not move
  // True: of each bucket, the array has only the range that this rank holds, and only the gather in
  // the replica group takes place. False: the array has whole buckets.
  bool held = false;
};

class ParameterGather {
 public:
  // The gathers of this many layers after the one that is awaited are in flight.
  static constexpr int kPrefetch = 2;

  // All arguments are borrowed and must outlive the gather. The arrays cover the arena. The layers
  // are those of the model in the order of its forward pass, each with its parameters; every
  // parameter is in one of them.
  ParameterGather(const ParameterLayout& layout, ShardGroups groups,
                  std::vector<GatheredArray> arrays,
                  const std::vector<std::vector<int>>& params_of_layer, int prefetch = kPrefetch);

  // This rank's slices have changed, so every bucket must be gathered before it is read, except
  // frozen buckets after the first call. Sends nothing. `consumer`: the stream that has updated the
  // slices and will read the parameters; null on the CPU.
  void Start(cudaStream_t consumer);
  // As Start, after a load that has changed frozen buckets too.
  void StartAll(cudaStream_t consumer);
  // Waits for the buckets of a layer, the index of `params_of_layer`, and issues those of the next
  // layers. On a GPU, only the stream `consumer` waits. All ranks await the same layers in the same
  // order.
  void Await(int layer);
  void AwaitAll();

  // Returns the seconds that the host has waited since the last call.
  double TakeWaitSeconds();

 private:
  enum class State : uint8_t { kStale, kInReplicas, kIssued, kDone };
  struct Gather {
    State state = State::kDone;
    Work work;
  };
  std::vector<int> BucketsBefore(State state, int layer, int ahead) const;
  void IssueInReplicas(const std::vector<int>& buckets);
  void Issue(const std::vector<int>& buckets);
  void AwaitWork(Gather& gather);
  TensorRef PartOf(const GatheredArray& array, const Bucket& bucket,
                   const ParameterLayout::SliceRange& part) const;
  const GatheredArray& ArrayOf(const Bucket& bucket) const;

  const ParameterLayout& layout_;
  ShardGroups groups_;
  std::vector<GatheredArray> arrays_;
  int prefetch_;
  cudaStream_t consumer_ = nullptr;
  std::vector<std::vector<int>> buckets_of_layer_;  // in the order in which they are sent
  std::vector<Gather> gathers_;                     // by bucket
  bool started_ = false;
  double wait_seconds_ = 0;
};

}  // namespace halflife::dist
