// Sums gradients over ranks bucket by bucket while backward still runs. Buckets launch strictly in
// index order, so all ranks issue the same sequence whatever order their gradients become ready in.
// Each rank gets all sums, or, where each updates only its slice of the parameters, those of its
// slices.
//
//   GradientReducer reducer(layout, comm, grads);
//   reducer.BeginStep(nullptr);  // before the last micro-batch's backward; the CPU has no stream
//   reducer.MarkReady(param);    // from each parameter's hook
//   reducer.Finish();            // throws Error kInternal naming parameters without a gradient
#pragma once

#include <vector>

#include "dist/bucket_progress.h"
#include "dist/communicator.h"
#include "dist/gradient_wire.h"
#include "dist/parameter_layout.h"

namespace halflife::dist {

enum class ReducedTo : uint8_t { kAllRanks, kSlices };

class GradientReducer {
 public:
  // All are borrowed for the reducer's life. `grads` has layout.num_elements() elements of fp32 and
  // stays in place; `wire` is of those, or null where they travel as they are.
  GradientReducer(const ParameterLayout& layout, Communicator& comm, TensorRef grads,
                  ReducedTo to = ReducedTo::kAllRanks, GradientWire* wire = nullptr);

  // `producer`: the stream on which this step's backward writes the gradients, and which reads
  // their sums after Finish; null on the CPU. Asked for anew in each step, as whoever runs the step
  // chooses its stream.
  void BeginStep(cudaStream_t producer);
  // The parameter's gradient of this step is complete in the arena. Twice in one step is an Error
  // naming it.
  void MarkReady(int param);
  // All are: of a backward that was replayed, which calls no hooks.
  void MarkAllReady();
  // Waits until every bucket is summed. Afterwards the arena holds the sum over ranks: everywhere,
  // or with kSlices in this rank's slice of each bucket (of the rest anything).
  void Finish();

  // Seconds the host has waited in Finish in this step: communication that compute did not hide.
  double exposed_seconds() const { return exposed_seconds_; }

 private:
  void LaunchReady();
  Work Launch(int bucket);
  // What this rank gets of a bucket's sum, in the layout's elements.
  struct Range {
    int64_t begin, count;
  };
  Range ReceivedOf(const Bucket& bucket) const;

  const ParameterLayout& layout_;
  Communicator& comm_;
  TensorRef grads_;
  ReducedTo to_;
  GradientWire* wire_;
  cudaStream_t producer_ = nullptr;  // of the step under way
  BucketProgress progress_;
  std::vector<Work> works_;  // by bucket, launched so far
  bool active_ = false;
  double exposed_seconds_ = 0;
};

}  // namespace halflife::dist
