// Which gradients of a backward are there, and which buckets they complete: what every reduction of
// buckets counts.
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

// The bucket of each parameter.
std::vector<int> BucketsOfParameters(const ParameterLayout& layout);

class BucketProgress {
 public:
  explicit BucketProgress(const ParameterLayout& layout);  // borrowed

  void Begin();
  // Error kInternal naming a parameter whose gradient was complete before.
  void MarkReady(int param);
  bool complete(int bucket) const { return remaining_[bucket] == 0; }
  // Error kInternal naming the parameters without a gradient.
  void RequireAll() const;
  int bucket_of(int param) const { return bucket_of_[param]; }

 private:
  const ParameterLayout& layout_;
  std::vector<int> bucket_of_;  // by parameter
  std::vector<int> remaining_;  // parameters a bucket still waits for
  std::vector<bool> ready_;     // by parameter
};

}  // namespace halflife::dist
