// Gathers the weights of ZeRO stage 3: each unit (layer) from the ranks of the shard group, a few
// layers before forward or backward reads it (unit_schedule.h).
#pragma once

#include <functional>
#include <vector>

#include "dist/communicator.h"
#include "dist/parameter_gather.h"
#include "dist/unit_schedule.h"

namespace halflife::dist {

// The slots of gathered units, in memory of the caller. Calls are in the order of the consumer
// stream: memory that one call releases may be read by work that is queued before it.
class UnitMemory {
 public:
  virtual ~UnitMemory() = default;
  virtual int num_units() const = 0;
  virtual int prefetch() const = 0;
  virtual const std::vector<int>& buckets_of(int unit) const = 0;
  // Returns the memory of a bucket of the unit in a slot.
  virtual TensorRef BucketIn(int slot, int unit, int bucket) const = 0;
  // Makes the unit's parameters point at the slot, or at nothing.
  virtual void Place(int unit, int slot) = 0;
  virtual void Release(int unit, int slot) = 0;
};

class UnitGather {
 public:
  struct Parts {
    UnitMemory& memory;  // borrowed, like the others
    // This rank's range of a bucket, in memory that does not move.
    std::function<TensorRef(int bucket)> held;
    // A communicator of the shard group that nothing else uses, because gradients are reduced while
    // units are gathered.
    Communicator& shard;
    // Gathers the ranges that this rank holds, and the parameters of no unit.
    ParameterGather& gather;
  };
  explicit UnitGather(Parts parts);

  // Waits for the unit and issues the gathers of the next ones. On a GPU, only the stream
  // `consumer` waits, which then reads the unit. All ranks call the same in the same order.
  void AwaitForward(int unit, cudaStream_t consumer);
  // `forward_follows`: the backward of this micro-batch is followed by a forward with the same
  // weights.
  void AwaitBackward(int unit, bool forward_follows, cudaStream_t consumer);
  void Invalidate();

  // Returns the seconds that the host has waited since the last call.
  double TakeWaitSeconds();

 private:
  void Issue(const UnitSchedule::Gather& gather);
  void AwaitSlot(int slot);

  const Parts parts_;
  UnitSchedule schedule_;
  cudaStream_t consumer_ = nullptr;
  std::vector<std::vector<Work>> works_;  // by slot: one for each bucket in flight
  double wait_seconds_ = 0;
};

}  // namespace halflife::dist
