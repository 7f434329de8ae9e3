// Gathers every rank's slices of the arena on all ranks, bucket by bucket, while the next forward
// pass already runs on the first buckets.
//
//   ParameterGather gather(layout, comm, {{.begin = 0, .end = n, .data = weights}});
//   gather.Start(nullptr);  // after the update of this rank's slices; the CPU has no stream
//   gather.Await(param);    // before the parameter is read
#pragma once

#include <vector>

#include "dist/communicator.h"
#include "dist/parameter_layout.h"

namespace halflife::dist {

// OpTag::what of a bucket's gather. Plans use it to distinguish gathers from gradient sums.
constexpr char kParameterBucket[] = "param_bucket";

// The weights that ranks compute with: elements [begin, end) of the arena, which are whole buckets,
// in any dtype.
struct GatheredArray {
  int64_t begin = 0, end = 0;
  TensorRef data = {};  // end - begin elements; borrowed, must not move
};

class ParameterGather {
 public:
  // All arguments are borrowed and must outlive the gather. The arrays cover the arena.
  ParameterGather(const ParameterLayout& layout, Communicator& comm,
                  std::vector<GatheredArray> arrays);

  // Starts all gathers. The buckets that forward reads first, which are last in the arena, are sent
  // first. `consumer`: the stream that has updated this rank's slices and will read the other
  // ranks' slices; null on the CPU.
  void Start(cudaStream_t consumer);
  // Waits for the parameter's bucket. Returns at once if no gather is in flight.
  void Await(int param);
  void AwaitAll();

  // Seconds that the host has waited since the last call of this function.
  double TakeWaitSeconds();

 private:
  void AwaitBucket(int bucket);
  const GatheredArray& ArrayOf(const Bucket& bucket) const;

  const ParameterLayout& layout_;
  Communicator& comm_;
  std::vector<GatheredArray> arrays_;
  cudaStream_t consumer_ = nullptr;
  std::vector<int> bucket_of_;  // by parameter
  std::vector<Work> works_;     // by bucket
  double wait_seconds_ = 0;
};

}  // namespace halflife::dist
