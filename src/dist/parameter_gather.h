// Brings every rank's slices of the arena to all ranks, bucket by bucket, while the next forward
// already runs on the first of them.
//
//   ParameterGather gather(layout, comm, {{.begin = 0, .end = n, .data = weights}});
//   gather.Start(nullptr);  // after the update of this rank's slices; the CPU has no stream
//   gather.Await(param);    // before the parameter is read
#pragma once

#include <vector>

#include "dist/communicator.h"
#include "dist/parameter_layout.h"

namespace halflife::dist {

// OpTag::what of a bucket's gather: plans tell it from sums of gradients.
constexpr char kParameterBucket[] = "param_bucket";

// What ranks compute with: elements [begin, end) of the arena, whole buckets, in any dtype.
struct GatheredArray {
  int64_t begin = 0, end = 0;
  TensorRef data = {};  // end - begin elements, borrowed, in place
};

class ParameterGather {
 public:
  // All are borrowed for the gather's life. The arrays cover the arena.
  ParameterGather(const ParameterLayout& layout, Communicator& comm,
                  std::vector<GatheredArray> arrays);

  // The buckets that forward reads first leave first, those that lie last in the arena. `consumer`:
  // the stream that has updated this rank's slices and will read the others'; null on the CPU.
  void Start(cudaStream_t consumer);
  // Waits for the parameter's bucket; at once where nothing is under way.
  void Await(int param);
  void AwaitAll();

  // Seconds the host has waited since the last call of this function.
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
