// Predicts how long each strategy takes to pass states between the ranks of a row. The model is the
// measured latency and time per byte of the two operations that strategies consist of, and the
// prediction is the time until the last rank has its state.
//
//   const ExchangeCost cost = MeasureExchange(group, at::kCPU);
//   const StateStrategy strategy = cost.Cheapest(group.size(), {.state = bytes});
#pragma once

#include "ops/sequence/row_segment.h"

namespace halflife::ops {

constexpr int64_t kScanPieces = 4;  // into which kScan cuts a state

// The bytes of one rank's summary. kGather sends both parts, the other strategies only the state.
struct ExchangeBytes {
  int64_t state = 0;
  int64_t transition = 0;  // small if diagonal; K/V of the state's bytes if dense
};

struct ExchangeCost {
  double gather_s = 0, gather_s_per_byte = 0;  // AllGather; bytes that one rank contributes
  double shift_s = 0, shift_s_per_byte = 0;    // message to a neighbour

  // Returns the seconds until the last of `ranks` has its state. A ring waits for ranks - 1
  // consecutive messages. A scan waits until its first piece has passed all ranks, and then for the
  // other pieces. `strategy` must not be kCheapest.
  double Seconds(StateStrategy strategy, int ranks, const ExchangeBytes& bytes) const;
  // Returns the strategy with the fewest seconds. For two ranks this is always kRing: it needs one
  // message, and the sender does not wait.
  StateStrategy Cheapest(int ranks, const ExchangeBytes& bytes) const;
};

// Times messages of 4 KiB and 1 MiB. Collective: all ranks get the times of the slowest one.
ExchangeCost MeasureExchange(SegmentGroup& group, at::Device device);

}  // namespace halflife::ops
