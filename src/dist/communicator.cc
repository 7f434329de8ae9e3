#include "dist/communicator.h"

#include <cstring>
#include <numeric>

#include "core/clock.h"
#include "dist/request.h"
#ifdef HALFLIFE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace halflife::dist {
namespace {

ExitCode CodeOf(CommFailure::Kind kind) {
  switch (kind) {
    case CommFailure::Kind::kTimeout:
      return ExitCode::kTimeout;
    case CommFailure::Kind::kPeerLost:
    case CommFailure::Kind::kAborted:
      return ExitCode::kPeerLost;
    case CommFailure::Kind::kLibrary:
    case CommFailure::Kind::kDesync:
      return ExitCode::kInternal;
  }
  return ExitCode::kInternal;
}

// Copies `in` to `out`. On a GPU the copy runs after the work that the producer stream has queued
// and before later work.
void Copy(const Request& request) {
#ifdef HALFLIFE_WITH_CUDA
  if (request.out.device.is_cuda()) {
    const cudaError_t error =
        cudaMemcpyAsync(request.out.data, request.in.data, static_cast<size_t>(request.in.bytes()),
                        cudaMemcpyDeviceToDevice, request.producer);
    HL_CHECK_AS(ExitCode::kEnvironment, error == cudaSuccess,
                "copying within a GPU: ", cudaGetErrorString(error));
    return;
  }
#endif
  std::memmove(request.out.data, request.in.data, request.in.bytes());
}

class SelfCommunicator final : public RequestCommunicator {
 public:
  SelfCommunicator(std::string name, Device::Kind tensors)
      : RequestCommunicator(0, 1, std::move(name)), tensors_(tensors) {}

  void Abort(const std::string& cause) noexcept override { aborted_ = cause; }

 private:
  std::unique_ptr<RequestCommunicator> SplitGroup(int color, int, std::string name) override {
    return color < 0 ? nullptr : std::make_unique<SelfCommunicator>(std::move(name), tensors_);
  }
  Device::Kind device_kind() const override { return tensors_; }
  Work Issue(Request request, int64_t seq) override {
    if (!aborted_.empty()) {
      throw CommError({CommFailure::Kind::kAborted,
                       Concat(Describe(request, name(), seq), ": stopped because ", aborted_)});
    }
    const bool lonely = request.kind == OpKind::kSendRecv && request.to != 0 && request.from != 0;
    if (lonely || request.in.data == request.out.data || request.in.count == 0) return {};
    HL_CHECK(request.in.bytes() == request.out.bytes(), Describe(request, name(), seq),
             ": sent and received sizes differ");
    Copy(request);
    return {};
  }

  const Device::Kind tensors_;
  std::string aborted_;
};

void Await(Work work, const Waiter& wait) {
  if (wait) return wait(work);
  work.WaitHost();
}

}  // namespace

CommError::CommError(CommFailure failure)
    : Error(CodeOf(failure.kind), "dist", std::move(failure.text)), kind_(failure.kind) {}

double AwaitResult(Work work, cudaStream_t consumer) {
  const Stopwatch stopwatch;
  work.WaitOn(consumer);
  return stopwatch.Seconds();
}

std::string BroadcastBytes(Communicator& comm, std::string bytes, int root, OpTag tag,
                           const Waiter& wait) {
  int64_t length = static_cast<int64_t>(bytes.size());
  Await(comm.Broadcast(Ref(&length, 1), root, tag, nullptr), wait);
  bytes.resize(static_cast<size_t>(length));
  Await(comm.Broadcast(Ref(reinterpret_cast<uint8_t*>(bytes.data()), length), root, tag, nullptr),
        wait);
  return bytes;
}

// Gathers the bytes of all ranks. The bytes of a subtree of ranks are sent as one text: for each
// rank, in order, the length of its bytes (8 bytes) and the bytes.
std::vector<std::string> GatherBytes(Communicator& comm, const std::string& bytes, OpTag tag,
                                     const Waiter& wait) {
  const int rank = comm.rank(), size = comm.size();
  const auto exchange = [&](TensorRef send, int to, TensorRef receive, int from) {
    Await(comm.SendRecv(send, to, receive, from, tag, nullptr), wait);
  };
  const auto bytes_of = [](std::string& text) {
    return Ref(reinterpret_cast<uint8_t*>(text.data()), static_cast<int64_t>(text.size()));
  };
  auto own = static_cast<int64_t>(bytes.size());
  std::string subtree(reinterpret_cast<const char*>(&own), sizeof own);
  subtree += bytes;
  // Every rank issues the same number of operations. Most of them have no peer.
  for (int distance = 1; distance < size; distance *= 2) {
    const bool sends = rank % (2 * distance) == distance;
    const bool receives = rank % (2 * distance) == 0 && rank + distance < size;
    const int to = sends ? rank - distance : -1, from = receives ? rank + distance : -1;
    auto sent = static_cast<int64_t>(sends ? subtree.size() : 0);
    int64_t received = 0;
    exchange(Ref(&sent, 1), to, Ref(&received, 1), from);
    std::string part(static_cast<size_t>(received), '\0');
    TensorRef outgoing = bytes_of(subtree);
    outgoing.count = sent;
    exchange(outgoing, to, bytes_of(part), from);
    subtree += part;
  }
  std::vector<std::string> parts;
  for (size_t at = 0; rank == 0 && at < subtree.size(); at += parts.back().size()) {
    int64_t length = 0;
    std::memcpy(&length, subtree.data() + at, sizeof length);
    parts.push_back(subtree.substr(at += sizeof length, static_cast<size_t>(length)));
  }
  return parts;
}

std::vector<std::string> AllGatherBytes(Communicator& comm, const std::string& bytes, OpTag tag) {
  std::string mine = bytes;
  int64_t length = static_cast<int64_t>(bytes.size());
  std::vector<int64_t> lengths(comm.size());
  comm.AllGather(Ref(&length, 1), Ref(lengths.data(), comm.size()), tag, nullptr).WaitHost();
  std::string all(std::accumulate(lengths.begin(), lengths.end(), size_t{}), '\0');
  comm.AllGatherV(Ref(reinterpret_cast<uint8_t*>(mine.data()), length),
                  Ref(reinterpret_cast<uint8_t*>(all.data()), static_cast<int64_t>(all.size())),
                  lengths, tag, nullptr)
      .WaitHost();
  std::vector<std::string> parts;
  size_t begin = 0;
  for (const int64_t part : lengths) {
    parts.push_back(all.substr(begin, static_cast<size_t>(part)));
    begin += static_cast<size_t>(part);
  }
  return parts;
}

std::unique_ptr<Communicator> MakeSelfCommunicator(std::string name, Device::Kind tensors) {
  return std::make_unique<SelfCommunicator>(std::move(name), tensors);
}

}  // namespace halflife::dist
