// Sums gradients over ranks bucket by bucket while backward still runs. Buckets launch strictly in
// index order, so all ranks issue the same sequence whatever order their gradients become ready in.
//
//   GradientReducer reducer(layout, comm, grads, /*producer=*/nullptr);
//   reducer.BeginStep();         // before the last micro-batch's backward
//   reducer.MarkReady(param);    // from each parameter's hook
//   reducer.Finish();            // throws Error kInternal naming parameters without a gradient
#pragma once

#include <vector>

#include "dist/communicator.h"
#include "dist/parameter_layout.h"

namespace halflife::dist {

class GradientReducer {
 public:
  // All are borrowed for the reducer's life. `grads` has layout.num_elements() elements of fp32 and
  // stays in place.
  GradientReducer(const ParameterLayout& layout, Communicator& comm, TensorRef grads,
                  cudaStream_t producer);

  void BeginStep();
  // The parameter's gradient of this step is complete in the arena. Twice in one step is an Error
  // naming it.
  void MarkReady(int param);
  // Waits until every bucket is summed. Afterwards the arena holds the sum over ranks on every
  // rank.
  void Finish();

  // Seconds the host has waited in Finish in this step: communication that compute did not hide.
  double exposed_seconds() const { return exposed_seconds_; }

 private:
  void LaunchReady();

  const ParameterLayout& layout_;
  Communicator& comm_;
  TensorRef grads_;
  cudaStream_t producer_;
  std::vector<int> bucket_of_;  // by parameter
  std::vector<int> remaining_;  // parameters a bucket still waits for
  std::vector<bool> ready_;     // by parameter
  std::vector<Work> works_;     // by bucket, launched so far
  bool active_ = false;
  double exposed_seconds_ = 0;
};

}  // namespace halflife::dist
