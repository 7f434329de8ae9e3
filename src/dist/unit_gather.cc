#include "dist/unit_gather.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace halflife::dist {

UnitSchedule::UnitSchedule(int num_units, int prefetch)
    : num_units_(num_units), prefetch_(prefetch), unit_in_(prefetch + 2, -1) {
  HL_CHECK(num_units >= 3 && prefetch >= 0, num_units, " units with a prefetch of ", prefetch);
}

int UnitSchedule::SlotOf(int unit) const {
  return is_edge(unit) ? prefetch_ + 1 : (unit - 1) % (prefetch_ + 1);
}

void UnitSchedule::Invalidate() { std::ranges::fill(unit_in_, -1); }

std::vector<UnitSchedule::Gather> UnitSchedule::Plan(int unit, int direction, int last) {
  HL_CHECK(0 <= unit && unit < num_units_, "unit ", unit, " of ", num_units_);
  const int farthest = prefetch_ == 0 ? 0 : prefetch_ + 1;
  std::vector<Gather> gathers;
  for (int distance = 0; distance <= farthest; ++distance) {
    const int next = unit + direction * distance;
    if ((last - next) * direction < 0 || (distance > prefetch_ && !is_edge(next))) break;
    const int slot = SlotOf(next), present = unit_in_[slot];
    if (present == next) continue;
    // A unit that is read earlier keeps its slot (the embedding, in a model of few layers).
    const int read_after = (present - unit) * direction;
    if (present >= 0 && 0 <= read_after && read_after < distance) break;
    gathers.push_back({.unit = next, .slot = slot, .released = present});
    unit_in_[slot] = next;
  }
  return gathers;
}

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
