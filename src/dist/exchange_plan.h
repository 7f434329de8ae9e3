// Turns one rank's share of a collective into point-to-point messages and ordered sums. This file
// does not know MPI: an engine posts the messages.
//
// A plan is a list of independent chains, one per segment of the payload. A chain is a list of
// rounds. The engine posts all messages of a round, waits for them, runs `then` and continues with
// the next round. For example, an all-reduce over W ranks, per segment of 4 MiB:
//
//   round 0: slice r of my segment -> rank r;  W - 1 copies of my slice -> staging
//   then:    my slice = pairwise sum of the W copies
//   round 1: my slice -> all ranks;  each other slice -> its position in the segment
#pragma once

#include <functional>
#include <vector>

#include "dist/request.h"

namespace halflife::dist {

struct Message {
  int peer;
  char* data;
  int64_t bytes;
};

struct Round {
  std::vector<Message> sends = {};
  std::vector<Message> receives = {};
  std::function<void()> then = {};
};
using Chain = std::vector<Round>;

struct ExchangePlan {
  int64_t num_chains = 0;
  // Called when the chain starts. Also copies the rank's data to itself.
  std::function<Chain(int64_t chain)> make_chain;
};

struct ExchangeLimits {
  // Size of a segment that is summed at once; fits the last-level cache.
  int64_t segment_bytes = 4 << 20;
  int64_t piece_bytes = 256 << 20;  // largest message; MPI counts are int
  // An all-reduce whose bytes times the number of ranks are at most this takes one round, in which
  // every rank sends all its data to every other rank.
  int64_t one_round_bytes = 1 << 20;
  // With more ranks, an all-reduce whose bytes times this number are at most one_round_bytes goes
  // up and down a binary tree: 2 (W - 1) messages instead of W (W - 1).
  int one_round_ranks = 32;
};

// Makes the plan of one rank. It keeps a copy of `request`, and borrows the memory of its tensors
// until the last chain has ended.
ExchangePlan MakeExchangePlan(const Request& request, int rank, int size,
                              const ExchangeLimits& limits);

}  // namespace halflife::dist
