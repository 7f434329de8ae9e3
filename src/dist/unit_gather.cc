#include "train/step/unit_gather.h"

#include <utility>

#include "ops/torch/tensor_ref.h"

namespace halflife::train {

UnitGather::UnitGather(ParameterArena& arena, dist::Communicator& shard,
                       dist::ParameterGather& gather)
    : arena_(arena),
      shard_(shard),
      gather_(gather),
      schedule_(arena.units()->num_units(), arena.units()->prefetch()),
      works_(schedule_.num_slots()) {}

void UnitGather::AwaitForward(int64_t layer) {
  const int unit = static_cast<int>(layer) + 1;
  gather_.Await(unit);  // parameters of no unit
  for (const auto& gather : schedule_.Forward(unit)) Issue(gather);
  AwaitSlot(schedule_.SlotOf(unit));
}

void UnitGather::AwaitBackward(int64_t layer) {
  const int unit = static_cast<int>(layer) + 1;
  for (const auto& gather : schedule_.Backward(unit)) Issue(gather);
  AwaitSlot(schedule_.SlotOf(unit));
}

void UnitGather::Issue(const dist::UnitSchedule::Gather& gather) {
  ParameterUnits& units = *arena_.units();
  AwaitSlot(gather.slot);  // a unit that was fetched but not read
  if (gather.released >= 0) units.Release(gather.released, gather.slot);
  gather_.Await(gather.unit);  // the range that this rank holds
  consumer_ = ops::CurrentStream(ops::RefOf(arena_.grads()).device);
  shard_.Batch([&] {
    for (const int bucket : units.buckets_of(gather.unit))
      works_[gather.slot].push_back(shard_.AllGather(
          arena_.HeldWeights(bucket), units.BucketIn(gather.slot, gather.unit, bucket),
          {dist::kParameterBucket, bucket}, consumer_));
  });
  units.Place(gather.unit, gather.slot);
}

void UnitGather::AwaitSlot(int slot) {
  for (dist::Work& work : std::exchange(works_[slot], {}))
    wait_seconds_ += dist::AwaitResult(std::move(work), consumer_);
}

void UnitGather::Invalidate() {
  for (int slot = 0; slot < schedule_.num_slots(); ++slot) {
    AwaitSlot(slot);
    if (schedule_.unit_in(slot) >= 0) arena_.units()->Release(schedule_.unit_in(slot), slot);
  }
  schedule_.Invalidate();
}

double UnitGather::TakeWaitSeconds() { return std::exchange(wait_seconds_, 0); }

}  // namespace halflife::train
