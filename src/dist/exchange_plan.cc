#include "dist/exchange_plan.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "core/bfloat16.h"
#include "dist/request.h"

namespace halflife::dist {
namespace {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t length() const { return end - begin; }
};

// Returns part `index` of `range`, divided into `parts` parts whose lengths differ by at most one
// element.
Range Part(Range range, int64_t index, int64_t parts) {
  return {range.begin + range.length() * index / parts,
          range.begin + range.length() * (index + 1) / parts};
}

int64_t DivideUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

char* At(const TensorRef& tensor, int64_t element) {
  return static_cast<char*>(tensor.Slice(element, 0).data);
}

void CopyToSelf(const char* from, char* to, int64_t bytes) {
  if (bytes > 0 && from != to) std::memmove(to, from, static_cast<size_t>(bytes));
}

// Copies a tensor's values to `to`: bf16 as fp32, other types as they are.
void WidenInto(const TensorRef& from, char* to) {
  if (from.dtype != DType::kBF16) return CopyToSelf(At(from, 0), to, from.bytes());
  const auto* const values = static_cast<const Bf16*>(from.data);
  for (int64_t i = 0; i < from.count; ++i) reinterpret_cast<float*>(to)[i] = Widen(values[i]);
}

// Undoes WidenInto. Rounds to nearest even.
void NarrowInto(const char* from, const TensorRef& to) {
  if (to.dtype != DType::kBF16) return CopyToSelf(from, At(to, 0), to.bytes());
  auto* const values = static_cast<Bf16*>(to.data);
  for (int64_t i = 0; i < to.count; ++i)
    values[i] = RoundToBf16(reinterpret_cast<const float*>(from)[i]);
}

class Planner {
 public:
  Planner(const Request& request, int rank, int size, const ExchangeLimits& limits)
      : request_(request),
        rank_(rank),
        size_(size),
        limits_(limits),
        element_(static_cast<int64_t>(SizeOf(request.in.dtype))) {}

  ExchangePlan Make() const;

 private:
  ExchangePlan AllReduce() const;
  ExchangePlan ReduceScatter() const;
  ExchangePlan Gather(std::vector<int64_t> counts) const;
  ExchangePlan AllToAll() const;
  ExchangePlan AllToAllV() const;
  ExchangePlan Broadcast() const;
  ExchangePlan SendReceive() const;
  ExchangePlan Barrier() const;

  // Receives one range from every rank and writes their ordered sum to `out`. `mine` is this rank's
  // part, and `outgoing(r)` is the message to rank r.
  Round ExchangeAndSum(int64_t count, const char* mine, char* out,
                       const std::function<Message(int)>& outgoing) const;
  Chain AllReduceChain(Range segment) const;
  Chain OneRoundAllReduce() const;
  Chain TreeAllReduce() const;
  void AddBroadcastRounds(int root, const std::function<Message(int)>& message_to,
                          Chain& rounds) const;

  template <typename Function>
  void ForPeers(Function function) const {
    for (int step = 1; step < size_; ++step) function((rank_ + step) % size_);  // spreads the load
  }

  const Request request_;
  const int rank_, size_;
  const ExchangeLimits limits_;
  const int64_t element_;  // bytes
};

Round Planner::ExchangeAndSum(int64_t count, const char* mine, char* out,
                              const std::function<Message(int)>& outgoing) const {
  Round round;
  const int64_t bytes = count * element_;
  const std::shared_ptr<char[]> staging(new char[static_cast<size_t>(bytes * size_)]);
  ForPeers([&](int peer) {
    round.sends.push_back(outgoing(peer));
    round.receives.push_back({peer, staging.get() + peer * bytes, bytes});
  });
  round.then = [=, dtype = request_.in.dtype, op = request_.reduce, rank = rank_, size = size_] {
    std::vector<const void*> sources;
    for (int r = 0; r < size; ++r) {
      sources.push_back(r == rank ? mine : staging.get() + r * bytes);
    }
    OrderedReduce(dtype, op, sources, out, count);
  };
  return round;
}

Chain Planner::AllReduceChain(Range segment) const {
  const auto message = [&](int peer, Range range) {
    return Message{peer, At(request_.out, range.begin), range.length() * element_};
  };
  const Range mine = Part(segment, rank_, size_);
  char* const place = At(request_.out, mine.begin);
  Round scatter = ExchangeAndSum(mine.length(), place, place, [&](int peer) {
    return message(peer, Part(segment, peer, size_));
  });
  Round gather;
  ForPeers([&](int peer) {
    gather.sends.push_back(message(peer, mine));
    gather.receives.push_back(message(peer, Part(segment, peer, size_)));
  });
  return {std::move(scatter), std::move(gather)};
}

Chain Planner::OneRoundAllReduce() const {
  char* const data = At(request_.out, 0);
  const int64_t bytes = request_.out.count * element_;
  return {ExchangeAndSum(request_.out.count, data, data, [&](int peer) {
    return Message{peer, data, bytes};
  })};
}

// Plans an all-reduce as a binary tree of ranks, which adds the values while they travel. After the
// round with distance d, each rank that is a multiple of 2 d holds the sum of the ranks [rank, rank
// + 2 d). OrderedReduce uses the same tree, so the bits are those of a single round. bf16 values
// travel as fp32, because OrderedReduce rounds only the result.
Chain Planner::TreeAllReduce() const {
  const int64_t count = request_.out.count;
  const DType stored = request_.out.dtype;
  const DType dtype = stored == DType::kBF16 ? DType::kF32 : stored;
  const auto bytes = count * static_cast<int64_t>(SizeOf(dtype));
  const std::shared_ptr<char[]> own(new char[static_cast<size_t>(2 * bytes)]);
  char* const partial = own.get();
  char* const received = own.get() + bytes;
  WidenInto(request_.out, partial);
  Chain rounds;
  int distance = 1;
  for (; distance < size_ && rank_ % (2 * distance) == 0; distance *= 2) {
    if (rank_ + distance >= size_) continue;
    rounds.push_back({.receives = {{rank_ + distance, received, bytes}},
                      .then = [own, partial, received, dtype, count, op = request_.reduce] {
                        const void* const terms[] = {partial, received};
                        OrderedReduce(dtype, op, terms, partial, count);
                      }});
  }
  if (rank_ != 0) rounds.push_back({.sends = {{rank_ - distance, partial, bytes}}});
  // The last round of the way up, or an empty one, ends with the result on rank 0.
  rounds.push_back({.then = [own, partial, out = request_.out, rank = rank_] {
    if (rank == 0) NarrowInto(partial, out);
  }});
  AddBroadcastRounds(
      0,
      [out = request_.out](int rank) {
        return Message{rank, static_cast<char*>(out.data), static_cast<int64_t>(out.bytes())};
      },
      rounds);
  return rounds;
}

ExchangePlan Planner::AllReduce() const {
  const int64_t count = request_.out.count;
  if (size_ > limits_.one_round_ranks &&
      count * element_ * limits_.one_round_ranks <= limits_.one_round_bytes) {
    return {1, [self = *this](int64_t) { return self.TreeAllReduce(); }};
  }
  if (count * element_ * size_ <= limits_.one_round_bytes) {
    return {1, [self = *this](int64_t) { return self.OneRoundAllReduce(); }};
  }
  const int64_t segment = std::max<int64_t>(limits_.segment_bytes / element_, 1);
  return {DivideUp(count, segment), [self = *this, segment, count](int64_t chain) {
            return self.AllReduceChain({chain * segment, std::min(count, (chain + 1) * segment)});
          }};
}

ExchangePlan Planner::ReduceScatter() const {
  const int64_t count = request_.out.count;
  const int64_t segment = std::max<int64_t>(limits_.segment_bytes / element_ / size_, 1);
  return {
      DivideUp(count, segment), [self = *this, segment, count](int64_t chain) -> Chain {
        const Range range = {chain * segment, std::min(count, (chain + 1) * segment)};
        const auto source = [&](int peer) {
          return At(self.request_.in, peer * count + range.begin);
        };
        return {self.ExchangeAndSum(
            range.length(), source(self.rank_), At(self.request_.out, range.begin), [&](int peer) {
              return Message{peer, source(peer), range.length() * self.element_};
            })};
      }};
}

// Divided by the longest contribution, so that all ranks create the same number of chains.
ExchangePlan Planner::Gather(std::vector<int64_t> counts) const {
  const int64_t piece = std::max<int64_t>(limits_.piece_bytes / element_, 1);
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  std::vector<int64_t> begins(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), int64_t{});
  return {DivideUp(longest, piece),
          [self = *this, piece, counts = std::move(counts),
           begins = std::move(begins)](int64_t chain) -> Chain {
            const auto range = [&](int rank) -> Range {
              return {std::min(counts[rank], chain * piece),
                      std::min(counts[rank], (chain + 1) * piece)};
            };
            const Range mine = range(self.rank_);
            const int64_t bytes = mine.length() * self.element_;
            char* const source = At(self.request_.in, mine.begin);
            CopyToSelf(source, At(self.request_.out, begins[self.rank_] + mine.begin), bytes);
            Round round;
            self.ForPeers([&](int peer) {
              const Range theirs = range(peer);
              round.sends.push_back({peer, source, bytes});
              round.receives.push_back({peer, At(self.request_.out, begins[peer] + theirs.begin),
                                        theirs.length() * self.element_});
            });
            return {std::move(round)};
          }};
}

ExchangePlan Planner::AllToAll() const {
  const int64_t count = request_.in.count / size_;
  const int64_t piece = std::max<int64_t>(limits_.piece_bytes / element_, 1);
  return {DivideUp(count, piece), [self = *this, count, piece](int64_t chain) -> Chain {
            const int64_t begin = chain * piece;
            const int64_t bytes = (std::min(count, begin + piece) - begin) * self.element_;
            const auto in = [&](int peer) { return At(self.request_.in, peer * count + begin); };
            const auto out = [&](int peer) { return At(self.request_.out, peer * count + begin); };
            CopyToSelf(in(self.rank_), out(self.rank_), bytes);
            Round round;
            self.ForPeers([&](int peer) {
              round.sends.push_back({peer, in(peer), bytes});
              round.receives.push_back({peer, out(peer), bytes});
            });
            return {std::move(round)};
          }};
}

// Plans an all-to-all. A pair of ranks exchanges pieces until its count is reached, so ranks may
// have different numbers of chains.
ExchangePlan Planner::AllToAllV() const {
  const int64_t piece = std::max<int64_t>(limits_.piece_bytes / element_, 1);
  const std::vector<int64_t>&to = request_.counts, &from = request_.from_counts;
  const int64_t longest = std::max(*std::max_element(to.begin(), to.end()),
                                   *std::max_element(from.begin(), from.end()));
  std::vector<int64_t> to_begins(to.size()), from_begins(from.size());
  std::exclusive_scan(to.begin(), to.end(), to_begins.begin(), int64_t{});
  std::exclusive_scan(from.begin(), from.end(), from_begins.begin(), int64_t{});
  return {DivideUp(longest, piece),
          [self = *this, piece, to_begins = std::move(to_begins),
           from_begins = std::move(from_begins)](int64_t chain) -> Chain {
            const int64_t first = chain * piece;
            const auto bytes_left = [&](int64_t count) {
              return std::clamp<int64_t>(count - first, 0, piece) * self.element_;
            };
            const auto in = [&](int peer) { return At(self.request_.in, to_begins[peer] + first); };
            const auto out = [&](int peer) {
              return At(self.request_.out, from_begins[peer] + first);
            };
            const int64_t own = bytes_left(self.request_.counts[self.rank_]);
            if (own > 0) CopyToSelf(in(self.rank_), out(self.rank_), own);
            Round round;
            self.ForPeers([&](int peer) {
              const int64_t sent = bytes_left(self.request_.counts[peer]);
              const int64_t received = bytes_left(self.request_.from_counts[peer]);
              if (sent > 0) round.sends.push_back({peer, in(peer), sent});
              if (received > 0) round.receives.push_back({peer, out(peer), received});
            });
            return {std::move(round)};
          }};
}

// Appends this rank's rounds of a broadcast down a binomial tree: it receives from its parent and
// then sends to its children. `message_to(r)` is the payload as a message to or from rank r.
void Planner::AddBroadcastRounds(int root, const std::function<Message(int)>& message_to,
                                 Chain& rounds) const {
  const int place = (rank_ - root + size_) % size_;  // position in the tree; the root is 0
  // Becomes the lowest set bit of `place`; the children are at place + 1, 2, 4, ... < reach.
  int reach = 1;
  while (reach < size_ && (place & reach) == 0) reach *= 2;
  Round receive, send;
  if (place != 0) receive.receives.push_back(message_to((place - reach + root) % size_));
  for (int step = reach / 2; step > 0; step /= 2)
    if (place + step < size_) send.sends.push_back(message_to((place + step + root) % size_));
  rounds.push_back(std::move(receive));
  rounds.push_back(std::move(send));
}

// Segments follow each other down the tree.
ExchangePlan Planner::Broadcast() const {
  const int64_t count = request_.out.count;
  const int64_t segment = std::max<int64_t>(limits_.segment_bytes / element_, 1);
  return {DivideUp(count, segment), [self = *this, count, segment](int64_t chain) {
            const int64_t begin = chain * segment;
            const int64_t bytes = (std::min(count, begin + segment) - begin) * self.element_;
            char* const data = At(self.request_.out, begin);
            Chain rounds;
            self.AddBroadcastRounds(
                self.request_.root,
                [=](int rank) {
                  return Message{rank, data, bytes};
                },
                rounds);
            return rounds;
          }};
}

ExchangePlan Planner::SendReceive() const {
  const int64_t piece = std::max<int64_t>(limits_.piece_bytes, 1);
  const int64_t sent = request_.to < 0 ? 0 : static_cast<int64_t>(request_.in.bytes());
  const int64_t received = request_.from < 0 ? 0 : static_cast<int64_t>(request_.out.bytes());
  if (request_.to == rank_ || request_.from == rank_) {
    HL_CHECK(request_.to == request_.from && sent == received, "a rank that sends ", sent,
             " bytes to itself must receive them itself, not ", received);
    return {1, [self = *this, sent](int64_t) {
              CopyToSelf(At(self.request_.in, 0), At(self.request_.out, 0), sent);
              return Chain();
            }};
  }
  // The two directions may have different lengths and therefore different numbers of messages.
  return {std::max(DivideUp(sent, piece), DivideUp(received, piece)),
          [self = *this, piece, sent, received](int64_t chain) -> Chain {
            const int64_t begin = chain * piece;
            Round round;
            if (begin < sent) {
              round.sends.push_back({self.request_.to, At(self.request_.in, 0) + begin,
                                     std::min(piece, sent - begin)});
            }
            if (begin < received) {
              round.receives.push_back({self.request_.from, At(self.request_.out, 0) + begin,
                                        std::min(piece, received - begin)});
            }
            return {std::move(round)};
          }};
}

// Dissemination barrier: after ceil(log2(size)) rounds every rank has a message, directly or
// indirectly, from every other rank.
ExchangePlan Planner::Barrier() const {
  return {1, [rank = rank_, size = size_](int64_t) {
            Chain rounds;
            for (int step = 1; step < size; step *= 2) {
              rounds.push_back({.sends = {{(rank + step) % size, nullptr, 0}},
                                .receives = {{(rank - step + size) % size, nullptr, 0}}});
            }
            return rounds;
          }};
}

ExchangePlan Planner::Make() const {
  switch (request_.kind) {
    case OpKind::kAllReduce:
      return AllReduce();
    case OpKind::kReduceScatter:
      return ReduceScatter();
    case OpKind::kAllGather:
      return Gather(std::vector<int64_t>(static_cast<size_t>(size_), request_.in.count));
    case OpKind::kAllGatherV:
      return Gather(request_.counts);
    case OpKind::kAllToAll:
      return AllToAll();
    case OpKind::kAllToAllV:
      return AllToAllV();
    case OpKind::kBroadcast:
      return Broadcast();
    case OpKind::kSendRecv:
      return SendReceive();
    case OpKind::kBarrier:
      return Barrier();
  }
  HL_FAIL(ExitCode::kInternal, "operation ", static_cast<int>(request_.kind), " has no plan");
}

}  // namespace

ExchangePlan MakeExchangePlan(const Request& request, int rank, int size,
                              const ExchangeLimits& limits) {
  return Planner(request, rank, size, limits).Make();
}

}  // namespace halflife::dist
