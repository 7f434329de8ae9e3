// UnitSchedule, by a simulation of the slots: for any model and prefetch, a unit is in its slot
// when it is read, and nothing is gathered that is there already.
#include "dist/unit_gather.h"

#include <gtest/gtest.h>

namespace halflife::dist {
namespace {

class Simulation {
 public:
  Simulation(int num_units, int prefetch)
      : num_units_(num_units), schedule_(num_units, prefetch), slots_(schedule_.num_slots(), -1) {}

  void Forward() {
    for (int unit = 0; unit < num_units_; ++unit) Read(unit, schedule_.Forward(unit));
  }
  // The head is still there, and the embedding is not read.
  void Backward(bool forward_follows = false) {
    EXPECT_EQ(slots_[schedule_.SlotOf(num_units_ - 1)], num_units_ - 1);
    for (int unit = num_units_ - 2; unit >= 1; --unit)
      Read(unit, schedule_.Backward(unit, forward_follows));
  }
  bool has_embedding() const { return slots_[schedule_.SlotOf(0)] == 0; }
  void Update() {
    schedule_.Invalidate();
    slots_.assign(slots_.size(), -1);
  }
  int num_gathers() const { return num_gathers_; }

 private:
  void Read(int unit, const std::vector<UnitSchedule::Gather>& gathers) {
    for (const UnitSchedule::Gather& gather : gathers) {
      ++num_gathers_;
      EXPECT_EQ(gather.slot, schedule_.SlotOf(gather.unit));
      EXPECT_EQ(gather.released, slots_[gather.slot]);
      EXPECT_NE(gather.released, gather.unit) << "gathered twice";
      slots_[gather.slot] = gather.unit;
    }
    EXPECT_EQ(slots_[schedule_.SlotOf(unit)], unit) << "read before its gather";
  }

  int num_units_;
  UnitSchedule schedule_;
  std::vector<int> slots_;
  int num_gathers_ = 0;
};

TEST(UnitSchedule, AUnitIsThereWhenItIsRead) {
  for (int layers = 1; layers <= 100; ++layers)
    for (int prefetch = 0; prefetch <= 4; ++prefetch) {
      SCOPED_TRACE(testing::Message() << layers << " layers, prefetch " << prefetch);
      Simulation step(layers + 2, prefetch);
      for (int times = 0; times < 2; ++times) {
        const int before = step.num_gathers();
        step.Forward();
        EXPECT_EQ(step.num_gathers() - before, layers + 2) << "each unit once";
        const int released = std::max(0, layers - (prefetch + 1));
        // If a second micro-batch follows, the embedding is gathered ahead.
        const bool follows = times > 0;
        step.Backward(follows);
        EXPECT_EQ(step.has_embedding(), follows && prefetch > 0);
        EXPECT_EQ(step.num_gathers() - before,
                  layers + 2 + released + (step.has_embedding() ? 1 : 0));
        // It finds the first blocks in their slots.
        step.Forward();
        EXPECT_EQ(step.num_gathers() - before,
                  2 * (layers + 2) + released - std::min(layers, prefetch + 1));
        step.Update();
      }
    }
}

// Passes that have no backward (validation, sampling) may follow each other.
TEST(UnitSchedule, ForwardPassesInARow) {
  Simulation step(7, 1);
  for (int times = 0; times < 3; ++times) step.Forward();
  step.Backward();
  step.Forward();
}

TEST(UnitSchedule, GathersTheNextUnitsFirstToLast) {
  UnitSchedule schedule(6, 1);
  using Gathers = std::vector<UnitSchedule::Gather>;
  EXPECT_EQ(schedule.Forward(0), (Gathers{{.unit = 0, .slot = 2}, {.unit = 1, .slot = 0}}));
  EXPECT_EQ(schedule.Forward(1), (Gathers{{.unit = 2, .slot = 1}}));
  EXPECT_EQ(schedule.Forward(2), (Gathers{{.unit = 3, .slot = 0, .released = 1}}));
  EXPECT_EQ(schedule.Forward(3), (Gathers{{.unit = 4, .slot = 1, .released = 2},
                                          {.unit = 5, .slot = 2, .released = 0}}));
  EXPECT_EQ(schedule.Forward(4), Gathers{});
  EXPECT_EQ(schedule.Forward(5), Gathers{});
  EXPECT_EQ(schedule.Backward(4), Gathers{});
  EXPECT_EQ(schedule.Backward(3), (Gathers{{.unit = 2, .slot = 1, .released = 4}}));
  EXPECT_EQ(
      schedule.Backward(2, /*forward_follows=*/true),
      (Gathers{{.unit = 1, .slot = 0, .released = 3}, {.unit = 0, .slot = 2, .released = 5}}));
  EXPECT_EQ(schedule.Backward(1, true), Gathers{});
}

}  // namespace
}  // namespace halflife::dist
