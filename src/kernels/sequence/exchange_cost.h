// What it costs to pass states between the ranks of a row, by each strategy: a latency and a time a
// byte of the two operations they are made of, measured, and the time until the last rank has its
// state.
//
//   const ExchangeCost cost = MeasureExchange(group, at::kCPU);
//   const StateStrategy strategy = cost.Cheapest(group.size(), bytes);
#pragma once

#include "kernels/sequence/row_segment.h"

namespace halflife::kernels {

constexpr int64_t kScanPieces = 4;  // of the states of a kScan

struct ExchangeCost {
  double gather_s = 0, gather_s_per_byte = 0;  // of an AllGather, by the bytes of a rank's part
  double shift_s = 0, shift_s_per_byte = 0;    // of a message to a neighbour

  // For states of `bytes` on each of `ranks`; not of kCheapest. A ring waits for ranks - 1 messages
  // one after the other, a scan for the first piece to pass all ranks and the other pieces behind
  // it.
  double Seconds(StateStrategy strategy, int ranks, int64_t bytes) const;
  // Of two ranks a ring, whatever was measured: one message, which its sender does not wait for.
  StateStrategy Cheapest(int ranks, int64_t bytes) const;
};

// Collective; equal on all ranks, the slowest's. Times messages of 4 KiB and 1 MiB.
ExchangeCost MeasureExchange(SegmentGroup& group, at::Device device);

}  // namespace halflife::kernels
