#include "dist/local_state.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <thread>

#include "core/philox.h"
#include "dist/request.h"

namespace halflife::dist::local {
namespace {

char* Bytes(const TensorRef& tensor) { return static_cast<char*>(tensor.data); }

void Copy(const void* from, void* to, size_t bytes) {
  if (bytes > 0 && from != to) std::memmove(to, from, bytes);
}

// Reduces elements [begin, begin + count) of every rank's input into `out`.
void Reduce(std::span<const Request> requests, int64_t begin, int64_t count, void* out) {
  std::vector<const void*> sources;
  for (const Request& request : requests) sources.push_back(request.in.Slice(begin, count).data);
  OrderedReduce(requests[0].in.dtype, requests[0].reduce, sources, out, count);
}

void AllReduce(std::span<const Request> requests) {
  const size_t bytes = requests[0].in.bytes();
  const auto sum = std::make_unique_for_overwrite<char[]>(bytes);
  Reduce(requests, 0, requests[0].in.count, sum.get());
  for (const Request& request : requests) Copy(sum.get(), request.out.data, bytes);
}

void ReduceScatter(std::span<const Request> requests) {
  // An output may be its rank's slice of the input, so all sums are computed before the first one
  // is stored.
  const size_t bytes = requests[0].out.bytes();
  const auto sums = std::make_unique_for_overwrite<char[]>(bytes * requests.size());
  for (size_t r = 0; r < requests.size(); ++r) {
    const int64_t count = requests[r].out.count;
    Reduce(requests, static_cast<int64_t>(r) * count, count, sums.get() + r * bytes);
  }
  for (size_t r = 0; r < requests.size(); ++r) {
    Copy(sums.get() + r * bytes, requests[r].out.data, bytes);
  }
}

void Gather(std::span<const Request> requests) {
  size_t offset = 0;
  for (const Request& source : requests) {
    for (const Request& sink : requests) {
      Copy(source.in.data, Bytes(sink.out) + offset, source.in.bytes());
    }
    offset += source.in.bytes();
  }
}

void AllToAll(std::span<const Request> requests) {
  const size_t piece = requests[0].in.bytes() / requests.size();
  for (size_t from = 0; from < requests.size(); ++from) {
    for (size_t to = 0; to < requests.size(); ++to) {
      Copy(Bytes(requests[from].in) + to * piece, Bytes(requests[to].out) + from * piece, piece);
    }
  }
}

// Returns the position of rank `peer`'s piece in a tensor whose pieces have these counts.
int64_t BeginOf(const std::vector<int64_t>& counts, size_t peer) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(peer),
                         int64_t{});
}

void AllToAllV(std::span<const Request> requests) {
  for (size_t from = 0; from < requests.size(); ++from) {
    for (size_t to = 0; to < requests.size(); ++to) {
      const Request &source = requests[from], &sink = requests[to];
      const TensorRef piece = source.in.Slice(BeginOf(source.counts, to), source.counts[to]);
      Copy(piece.data, sink.out.Slice(BeginOf(sink.from_counts, from), piece.count).data,
           piece.bytes());
    }
  }
}

// Exchanges the data through copies, because a rank may receive into the memory it sends from.
void SendReceive(std::span<const Request> requests) {
  std::vector<std::string> sent;
  for (const Request& request : requests) {
    sent.emplace_back(request.to < 0 ? "" : std::string(Bytes(request.in), request.in.bytes()));
  }
  for (const Request& request : requests) {
    if (request.from >= 0) {
      Copy(sent[request.from].data(), request.out.data, sent[request.from].size());
    }
  }
}

// Like PairingFault, for an all-to-all-v.
std::string CountsFault(std::span<const Request> requests) {
  for (size_t from = 0; from < requests.size(); ++from) {
    for (size_t to = 0; to < requests.size(); ++to) {
      if (requests[from].counts[to] == requests[to].from_counts[from]) continue;
      return Concat("rank ", from, " sends ", requests[from].counts[to], " elements to rank ", to,
                    ", which expects ", requests[to].from_counts[from]);
    }
  }
  return "";
}

// `requests` are sorted by rank and match by Difference(). Returns an empty string if all sends and
// receives pair up, otherwise a description of the first that does not.
std::string PairingFault(std::span<const Request> requests) {
  if (requests[0].kind == OpKind::kAllToAllV) return CountsFault(requests);
  if (requests[0].kind != OpKind::kSendRecv) return "";
  for (int rank = 0; rank < static_cast<int>(requests.size()); ++rank) {
    const Request& mine = requests[rank];
    if (mine.to >= 0 && requests[mine.to].from != rank) {
      return Concat("rank ", rank, " sends to rank ", mine.to, ", which receives from rank ",
                    requests[mine.to].from);
    }
    if (mine.from < 0) continue;
    const Request& peer = requests[mine.from];
    if (peer.to != rank || peer.in.bytes() != mine.out.bytes()) {
      return Concat("rank ", rank, " expects ", mine.out.bytes(), " bytes from rank ", mine.from,
                    ", which sends ", peer.in.bytes(), " to rank ", peer.to);
    }
  }
  return "";
}

// Executes a collective whose ranks share one address space.
void ExecuteOnHost(std::span<const Request> requests) {
  switch (requests[0].kind) {
    case OpKind::kAllReduce:
      return AllReduce(requests);
    case OpKind::kReduceScatter:
      return ReduceScatter(requests);
    case OpKind::kAllGather:
    case OpKind::kAllGatherV:
      return Gather(requests);
    case OpKind::kAllToAll:
      return AllToAll(requests);
    case OpKind::kAllToAllV:
      return AllToAllV(requests);
    case OpKind::kBroadcast: {
      const TensorRef& source = requests[requests[0].root].in;
      for (const Request& request : requests) Copy(source.data, request.out.data, source.bytes());
      return;
    }
    case OpKind::kSendRecv:
      return SendReceive(requests);
    case OpKind::kBarrier:
      return;
  }
}

}  // namespace

State::State(int size, const LocalOptions& options)
    : options_(options),
      world_(std::make_shared<Group>()),
      gone_(size, false),
      fault_hits_(options.faults.size(), 0) {
  world_->name = "world";
  for (int rank = 0; rank < size; ++rank) world_->world_ranks.push_back(rank);
}

std::shared_ptr<Group> State::FindGroup(const Group& parent, int64_t seq, int color,
                                        std::string name, std::vector<int> world_ranks) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Group>& group = groups_[{parent.id, seq, color}];
  if (!group) {
    group = std::make_shared<Group>();
    group->id = groups_.size();
    group->name = std::move(name);
    group->world_ranks = std::move(world_ranks);
  }
  return group;
}

std::shared_ptr<Slot> State::Arrive(Group& group, int rank, int64_t seq, Request request) {
  const std::lock_guard lock(mutex_);
  ThrowIfAborted(group, request, seq);
  std::shared_ptr<Slot>& entry = group.slots[seq];
  if (!entry) entry = std::make_shared<Slot>(Slot{.requests = {}, .due = {}});
  const std::shared_ptr<Slot> slot = entry;
  slot->requests.resize(group.world_ranks.size());
  for (size_t peer = 0; peer < slot->requests.size(); ++peer) {
    if (!slot->requests[peer]) continue;
    const std::string difference = Difference(*slot->requests[peer], request);
    if (difference.empty()) continue;
    Fail(CommFailure::Kind::kDesync, Concat("desync: rank ", group.world_ranks[peer], " issued ",
                                            Describe(*slot->requests[peer], group.name, seq),
                                            " where rank ", group.world_ranks[rank], " issued ",
                                            Describe(request, group.name, seq), ": ", difference));
  }
  slot->requests[rank] = std::move(request);
  if (++slot->arrived == static_cast<int>(group.world_ranks.size())) {
    const std::chrono::duration<double> delay(DelaySeconds(group, seq, -1));
    slot->due =
        std::max(group.last_due, Clock::now() + std::chrono::duration_cast<Clock::duration>(delay));
    group.last_due = slot->due;
    RunDue(group);
    changed_.notify_all();
  }
  return slot;
}

void State::RunDue(Group& group) {
  if (abort_) return;  // a rank may have withdrawn its buffers
  while (!group.slots.empty()) {
    const auto [seq, slot] = *group.slots.begin();
    const bool all = slot->arrived == static_cast<int>(group.world_ranks.size());
    if (!all || Clock::now() < slot->due) return;
    std::vector<Request> requests;
    for (const std::optional<Request>& request : slot->requests) requests.push_back(*request);
    if (const std::string fault = PairingFault(requests); !fault.empty()) {
      Fail(CommFailure::Kind::kDesync,
           Concat("desync: ", Describe(requests[0], group.name, seq), ": ", fault));
    }
    ExecuteOnHost(requests);
    slot->complete = true;
    group.slots.erase(seq);
    changed_.notify_all();
  }
}

bool State::Done(Group& group, Slot& slot) {
  const std::lock_guard lock(mutex_);
  RunDue(group);
  return slot.complete;
}

void State::Wait(Group& group, Slot& slot, int rank, int64_t seq, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  while (true) {
    RunDue(group);
    if (slot.complete) return;
    ThrowIfAborted(group, *slot.requests[rank], seq);
    const bool all = slot.arrived == static_cast<int>(group.world_ranks.size());
    if (!all) CheckPresence(group, slot, rank, seq, deadline);
    changed_.wait_until(lock, all ? slot.due : deadline);
  }
}

void State::CheckPresence(const Group& group, const Slot& slot, int rank, int64_t seq,
                          Clock::time_point deadline) {
  std::vector<int> missing, lost;
  for (size_t peer = 0; peer < slot.requests.size(); ++peer) {
    if (slot.requests[peer]) continue;
    const int world_rank = group.world_ranks[peer];
    missing.push_back(world_rank);
    if (gone_[world_rank]) lost.push_back(world_rank);
  }
  const std::string what = Describe(*slot.requests[rank], group.name, seq);
  const int my_world_rank = group.world_ranks[rank];
  if (!lost.empty()) {
    Fail(CommFailure::Kind::kPeerLost,
         Concat("peer lost: ", what, ": rank ", my_world_rank, " waits for rank ", JoinRanks(lost),
                ", which has ended"));
  }
  if (Clock::now() >= deadline) {
    Fail(CommFailure::Kind::kTimeout,
         Concat("timeout: ", what, " has waited ", WaitedSeconds(options_.timeout_s, deadline),
                " s; rank ", JoinRanks(missing), " has not issued it"));
  }
}

void State::ThrowIfAborted(const Group& group, const Request& request, int64_t seq) {
  if (!abort_) return;
  throw CommError({abort_->kind,
                   Concat(Describe(request, group.name, seq), ": stopped because ", abort_->text)});
}

void State::Fail(CommFailure::Kind kind, const std::string& text) {
  if (!abort_) abort_ = {CommFailure::Kind::kAborted, text};
  changed_.notify_all();
  throw CommError({kind, text});
}

void State::Abort(CommFailure::Kind kind, const std::string& cause) {
  const std::lock_guard lock(mutex_);
  if (!abort_) abort_ = {kind, cause};
  changed_.notify_all();
}

bool State::aborted() {
  const std::lock_guard lock(mutex_);
  return abort_.has_value();
}

void State::HangUntilAbort() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return abort_.has_value(); });
}

void State::Leave(int world_rank) {
  const std::lock_guard lock(mutex_);
  gone_[world_rank] = true;
  changed_.notify_all();
}

std::string State::LeftOver() {
  const std::lock_guard lock(mutex_);
  if (abort_) return "";  // the failure is already reported
  std::vector<std::shared_ptr<Group>> all = {world_};
  for (const auto& [key, group] : groups_) all.push_back(group);
  for (const std::shared_ptr<Group>& group : all) {
    for (const auto& [seq, slot] : group->slots) {
      std::vector<int> present, missing;
      const Request* request = nullptr;
      for (size_t rank = 0; rank < slot->requests.size(); ++rank) {
        if (slot->requests[rank]) request = &*slot->requests[rank];
        (slot->requests[rank] ? present : missing).push_back(group->world_ranks[rank]);
      }
      if (missing.empty()) continue;  // all ranks issued it, but none waited for it
      return Concat("desync: ", Describe(*request, group->name, seq), " was issued by rank ",
                    JoinRanks(present), ", but never by rank ", JoinRanks(missing));
    }
  }
  return "";
}

double State::Chance(uint64_t group, int64_t seq, int rank) const {
  uint64_t bits = options_.schedule->seed;
  for (const uint64_t part : {group, static_cast<uint64_t>(seq), static_cast<uint64_t>(rank + 2)}) {
    bits = SplitMix64(bits ^ part);
  }
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

double State::DelaySeconds(const Group& group, int64_t seq, int rank) const {
  if (!options_.schedule) return 0;
  const int slow_rank = static_cast<int>(SplitMix64(options_.schedule->seed) % gone_.size());
  const bool slow = rank >= 0 && group.world_ranks[rank] == slow_rank;
  return options_.schedule->max_delay_s * Chance(group.id, seq, rank) *
         (slow ? options_.schedule->slow_rank_factor : 1);
}

std::optional<LocalFault::Kind> State::TakeFault(int world_rank, const std::string& what) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < options_.faults.size(); ++i) {
    const LocalFault& fault = options_.faults[i];
    if (fault.rank == world_rank && fault.what == what && ++fault_hits_[i] == fault.nth) {
      return fault.kind;
    }
  }
  return std::nullopt;
}

}  // namespace halflife::dist::local
