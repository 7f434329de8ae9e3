#include "dist/host_collectives.h"

#include <cstring>
#include <memory>

#include "dist/ordered_reduce.h"

namespace halflife::dist {
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

// Data is staged, because a rank may receive into the memory it sends from.
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

}  // namespace

std::string PairingFault(std::span<const Request> requests) {
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

}  // namespace halflife::dist
