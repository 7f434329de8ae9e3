// Counts which gradients of a backward pass are ready and which buckets they complete. Every
// reduction of buckets uses it.
//
//   BucketProgress progress(layout);
//   progress.Begin();
//   progress.MarkReady(param);
//   if (progress.complete(bucket)) Launch(bucket);
//   progress.RequireAll();
#pragma once

#include <vector>

#include "dist/parameter_layout.h"

namespace halflife::dist {

// The index of each parameter's bucket, by parameter.
std::vector<int> BucketsOfParameters(const ParameterLayout& layout);

class BucketProgress {
 public:
  explicit BucketProgress(const ParameterLayout& layout);  // borrowed

  void Begin();
  // Throws Error kInternal, naming the parameter, if its gradient was already marked as ready.
  void MarkReady(int param);
  bool complete(int bucket) const { return remaining_[bucket] == 0; }
  // Throws Error kInternal, naming all parameters without a gradient.
  void RequireAll() const;
  int bucket_of(int param) const { return bucket_of_[param]; }

 private:
  const ParameterLayout& layout_;
  std::vector<int> bucket_of_;  // by parameter
  std::vector<int> remaining_;  // by bucket: parameters whose gradient is missing
  std::vector<bool> ready_;     // by parameter
};

}  // namespace halflife::dist
