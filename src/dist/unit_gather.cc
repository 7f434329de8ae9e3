#include "dist/unit_gather.h"

#include <utility>

namespace halflife::dist {

UnitGather::UnitGather(Parts parts)
    : parts_(std::move(parts)),
      schedule_(parts_.memory.num_units(), parts_.memory.prefetch()),
      works_(schedule_.num_slots()) {}

void UnitGather::AwaitForward(int unit, cudaStream_t consumer) {
  consumer_ = consumer;
  parts_.gather.Await(unit);  // parameters of no unit
  for (const UnitSchedule::Gather& gather : schedule_.Forward(unit)) Issue(gather);
  AwaitSlot(schedule_.SlotOf(unit));
}

void UnitGather::AwaitBackward(int unit, bool forward_follows, cudaStream_t consumer) {
  consumer_ = consumer;
  for (const UnitSchedule::Gather& gather : schedule_.Backward(unit, forward_follows))
    Issue(gather);
  AwaitSlot(schedule_.SlotOf(unit));
}

void UnitGather::Issue(const UnitSchedule::Gather& gather) {
  AwaitSlot(gather.slot);  // a unit that was fetched but not read
  if (gather.released >= 0) parts_.memory.Release(gather.released, gather.slot);
  parts_.gather.Await(gather.unit);  // the range that this rank holds
  parts_.shard.Batch([&] {
    for (const int bucket : parts_.memory.buckets_of(gather.unit))
      works_[gather.slot].push_back(parts_.shard.AllGather(
          parts_.held(bucket), parts_.memory.BucketIn(gather.slot, gather.unit, bucket),
          {kParameterBucket, bucket}, consumer_));
  });
  parts_.memory.Place(gather.unit, gather.slot);
}

void UnitGather::AwaitSlot(int slot) {
  for (Work& work : std::exchange(works_[slot], {}))
    wait_seconds_ += AwaitResult(std::move(work), consumer_);
}

void UnitGather::Invalidate() {
  for (int slot = 0; slot < schedule_.num_slots(); ++slot) {
    AwaitSlot(slot);
    if (schedule_.unit_in(slot) >= 0) parts_.memory.Release(schedule_.unit_in(slot), slot);
  }
  schedule_.Invalidate();
}

double UnitGather::TakeWaitSeconds() { return std::exchange(wait_seconds_, 0); }

}  // namespace halflife::dist
