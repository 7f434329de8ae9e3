// Gathers the weights of ZeRO stage 3: each unit (layer) from the ranks of the shard group, a few
// layers before forward or backward reads it.
#pragma once

#include <functional>
#include <vector>

#include "dist/communicator.h"
#include "dist/parameter_gather.h"

namespace halflife::dist {

// The places of the weights under ZeRO stage 3. The weights of the model are cut into units: unit 0
// is the embedding, units 1 to L are the blocks, and unit L + 1 is the head. A rank holds its share
// of all units, and gathers a whole unit into a slot shortly before it is read. Blocks use
// prefetch + 1 slots in turn. Embedding and head share one more slot.
//
// The schedule is arithmetic without messages, and the same on every rank. The caller issues the
// gathers that it returns, and waits for those of the unit that it reads.
class UnitSchedule {
 public:
  UnitSchedule(int num_units, int prefetch);

  struct Gather {
    int unit = 0, slot = 0;
    int released = -1;  // the unit that was in the slot; -1: none

    bool operator==(const Gather&) const = default;
  };
  // Returns the gathers to issue before a unit is read, in order: those of the unit itself and of
  // the `prefetch` units that are read after it, unless they are in their slots. An edge is
  // gathered one unit earlier than a block, because it is often larger, and no block uses its slot.
  // Forward reads the units in ascending order. Backward reads them in descending order, without
  // unit 0: the backward of an embedding reads no weights. If another forward with the same weights
  // follows, backward gathers unit 0 for it.
  std::vector<Gather> Forward(int unit) { return Plan(unit, 1, num_units_ - 1); }
  std::vector<Gather> Backward(int unit, bool forward_follows = false) {
    return Plan(unit, -1, forward_follows ? 0 : 1);
  }
  // Call after the weights have changed. Marks all slots as empty.
  void Invalidate();

  int num_slots() const { return prefetch_ + 2; }
  int SlotOf(int unit) const;
  bool is_edge(int unit) const { return unit == 0 || unit == num_units_ - 1; }
  // Returns the unit that a slot holds or is being filled with; -1: none.
  int unit_in(int slot) const { return unit_in_[slot]; }

 private:
  std::vector<Gather> Plan(int unit, int direction, int last);

  int num_units_, prefetch_;
  std::vector<int> unit_in_;  // by slot
};

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
