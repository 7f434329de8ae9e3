// The places of the weights under ZeRO stage 3. The weights of the model are cut into units: unit 0
// is the embedding, units 1 to L are the blocks, and unit L + 1 is the head. A rank holds its share
// of all units, and gathers a whole unit into a slot shortly before it is read. Blocks use
// prefetch + 1 slots in turn. Embedding and head share one more slot.
//
// The schedule is arithmetic without messages, and the same on every rank. The caller issues the
// gathers that it returns, and waits for those of the unit that it reads.
#pragma once

#include <vector>

namespace halflife::dist {

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

}  // namespace halflife::dist
