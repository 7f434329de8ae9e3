#include "dist/nccl_communicator.h"

#include <arpa/inet.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <thread>

#include "core/clock.h"
#include "core/log.h"
#include "dist/flight_recorder.h"
#include "dist/nccl_group.h"
#include "dist/nccl_poller.h"
#include "dist/request.h"
#include "dist/wait_longer.h"

namespace halflife::dist {
namespace {

using nccl::CheckCuda;
using nccl::Clock;
using nccl::Event;
using nccl::Group;
using nccl::Launch;
using nccl::Poller;

constexpr auto kPollInterval = std::chrono::microseconds(20);
constexpr double kJoinGraceSeconds = 10;  // by which ranks may begin a rendezvous later than others

ncclDataType_t ToNccl(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
    case DType::kU8:
      return ncclUint8;
  }
  HL_FAIL(ExitCode::kInternal, "NCCL has no dtype ", static_cast<int>(dtype));
}

ncclRedOp_t ToNccl(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kMin:
      return ncclMin;
  }
  HL_FAIL(ExitCode::kInternal, "NCCL has no reduction ", static_cast<int>(op));
}

// Returns the address to which all ranks of a rendezvous connect. NCCL's unique id contains it
// after 8 bytes.
std::string RootAddress(const std::string& id) {
  sockaddr_storage address = {};
  std::memcpy(&address, id.data() + 8, std::min(sizeof address, id.size() - 8));
  char text[INET6_ADDRSTRLEN] = {};
  uint16_t port = 0;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    port = ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    port = ntohs(v6.sin6_port);
  } else {
    return "an unknown address";
  }
  return Concat(text, " port ", port);
}

// Exchanges which ranks have joined. NCCL alone would not name those that have not. `failure` is
// this rank's; empty if it has joined. `begun` is the beginning of this rank's rendezvous; others
// may find their failure limit_s after it.
void RequireAllJoined(Communicator& host, const std::string& group, const std::string& root,
                      const std::string& failure, double limit_s, const Stopwatch& begun) {
  const auto fail = [&](CommFailure::Kind kind, const auto&... cause) {
    throw CommError(
        {kind, Concat(cause..., ". All ranks of group ", group, " connect to its rank 0 at ", root,
                      " within ", limit_s,
                      " s. If other hosts cannot reach this address, set NCCL_SOCKET_IFNAME to a "
                      "network interface that they can.")});
  };
  std::vector<std::string> failures;
  try {
    Work arrived = host.Barrier({"nccl_joined", 0});
    WaitLonger(arrived, limit_s + kJoinGraceSeconds - begun.Seconds());
    failures = AllGatherBytes(host, failure, {"nccl_joined", 1});
  } catch (const CommError& error) {
    fail(error.kind(), "NCCL rendezvous of group ", group, ": ", failure,
         failure.empty() ? "" : "; ", "not all ranks came: ", error.message());
  }
  std::vector<int> failed;
  for (int rank = 0; rank < host.size(); ++rank)
    if (!failures[static_cast<size_t>(rank)].empty()) failed.push_back(rank);
  if (failed.empty()) return;
  std::vector<int> of_world;
  for (const int rank : failed) of_world.push_back(host.WorldRank(rank));
  fail(CommFailure::Kind::kTimeout, "NCCL rendezvous of group ", group, " failed on rank ",
       JoinRanks(of_world), " of ", host.size(), ": ", failures[static_cast<size_t>(failed[0])]);
}

// The parts that all groups of a device share: the device's options and its poller.
struct DeviceGroups {
  DeviceGroups(Device used, const NcclOptions& given)
      : device(used), options(given), poller(used, given.watch) {}
  const Device device;
  const NcclOptions options;
  Poller poller;
  OrderedSum ordered_sum;  // null: NCCL sums
};

class NcclOperation final : public Operation {
 public:
  NcclOperation(std::shared_ptr<Group> group, const char* tag, std::string what)
      : group_(std::move(group)),
        tag_(tag),
        what_(std::move(what)),
        exceptions_(std::uncaught_exceptions()) {}

  ~NcclOperation() override {
    if (launch_ == nullptr || handed_over_) return;
    try {
      if (launch_->done.Happened(what_)) return;
      if (std::uncaught_exceptions() > exceptions_) {  // no other rank may ever take part
        group_->Abort(Concat(what_, " was abandoned by an exception"));
        return;
      }
      WaitHost();
    } catch (const std::exception& error) {
      HL_WARN("dist", error.what());
    }
  }

  // The deadline counts from here: the rendezvous of the group has its own.
  void MarkIssued(std::shared_ptr<const Launch> launch) {
    launch_ = std::move(launch);
    deadline_ = DeadlineIn(group_->options().timeout_s);
  }
  const std::string& what() const { return what_; }

  bool Done() override {
    RequireIssued();
    return launch_->done.Happened(what_);
  }

  // Throws after the deadline, unless a watchdog judges how long ranks may be late.
  void WaitHost() override {
    while (!Done()) {
      group_->CheckHealth(what_);
      if (!group_->options().has_watchdog && Clock::now() > deadline_) {
        const std::string text =
            Concat("timeout: ", what_, " has waited ",
                   WaitedSeconds(group_->options().timeout_s, deadline_), " s");
        group_->Abort(text);
        throw CommError({CommFailure::Kind::kTimeout, text});
      }
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  void WaitOn(cudaStream_t consumer) override {
    RequireIssued();
    group_->ThrowIfAborted(what_);
    group_->WaitOn(consumer, launch_->done, tag_, what_);
    handed_over_ = true;
  }

 private:
  void RequireIssued() const {
    HL_CHECK(launch_ != nullptr, what_, ": a wait within the batch that issues the operation");
  }

  const std::shared_ptr<Group> group_;
  const char* const tag_;
  const std::string what_;
  Clock::time_point deadline_;            // valid once launch_ is
  const int exceptions_;                  // exceptions in flight when the operation was issued
  std::shared_ptr<const Launch> launch_;  // null until the batch of the operation ends
  bool handed_over_ = false;              // a stream waits for the operation, so the host need not
};

class NcclCommunicator final : public RequestCommunicator {
 public:
  // The ranks of the group are those of `host`, from which it makes its rendezvous.
  NcclCommunicator(std::unique_ptr<Communicator> host, std::string name,
                   std::shared_ptr<DeviceGroups> device)
      : RequestCommunicator(host->rank(), host->size(), name),
        host_(std::move(host)),
        device_(std::move(device)),
        group_(std::make_shared<Group>(device_->device, name, device_->options)) {
    device_->poller.Add(group_->watched());
  }
  ~NcclCommunicator() override { device_->poller.Remove(group_->watched()); }

  int WorldRank(int rank) const override { return host_->WorldRank(rank); }
  void Batch(const std::function<void()>& issue) override;
  std::map<std::string, double> TakeStreamWaits() override { return group_->TakeStreamWaits(); }
  void SumInOrder(OrderedSum sum) override { device_->ordered_sum = std::move(sum); }
  void CountStreamWaits(bool count) override { group_->CountStreamWaits(count); }
  void Abort(const std::string& cause) noexcept override { group_->Abort(cause); }

 private:
  struct Pending {
    Request request;
    std::shared_ptr<NcclOperation> operation;
  };

  std::unique_ptr<RequestCommunicator> SplitGroup(int color, int key, std::string name) override {
    std::unique_ptr<Communicator> host = host_->Split(color, key, Concat("control_", name));
    if (host == nullptr) return nullptr;
    return std::make_unique<NcclCommunicator>(std::move(host), std::move(name), device_);
  }
  Device::Kind device_kind() const override { return Device::Kind::kCuda; }
  bool records_ends() const override { return true; }
  void SetRole(GroupRole role) override { role_ = role; }
  Work Issue(Request request, int64_t seq) override;
  // Makes the NCCL communicator. Collective.
  void Join();
  void IssueTogether(std::span<const Pending> all);
  // Makes the group's stream wait for the producers of the requests.
  void AwaitProducers(std::span<const Pending> all, const std::string& what);
  bool SumsInOrder(const Request& request) const;
  void IssueOrderedSum(const Request& request, const std::string& what);
  ncclResult_t Enqueue(const Request& request, ncclComm_t comm) const;
  ncclResult_t EnqueuePieces(const Request& request, ncclComm_t comm) const;
  // Sends a piece if it has elements. ncclGroupEnd returns the errors of these calls.
  void Send(const TensorRef& piece, int to, ncclComm_t comm) const;
  void Receive(const TensorRef& piece, int from, ncclComm_t comm) const;

  const std::unique_ptr<Communicator> host_;
  const std::shared_ptr<DeviceGroups> device_;
  const std::shared_ptr<Group> group_;
  GroupRole role_ = GroupRole::kGradients;
  bool joined_ = false;
  std::optional<std::vector<Pending>> batch_;  // operations of the batch that is being issued
};

Work NcclCommunicator::Issue(Request request, int64_t seq) {
  // In these operations other ranks may have data, and the first operation of a group connects all
  // of its ranks.
  const bool others_have_data = request.kind == OpKind::kBarrier ||
                                request.kind == OpKind::kSendRecv ||
                                request.kind == OpKind::kAllToAllV;
  if (request.in.count == 0 && request.out.count == 0 && !others_have_data) {
    request.EndRecord();
    return {};
  }
  const std::string what = Describe(request, name(), seq);
  group_->ThrowIfAborted(what);
  auto operation = std::make_shared<NcclOperation>(group_, request.tag.what, what);
  const Pending pending = {std::move(request), operation};
  if (batch_) {
    batch_->push_back(pending);
  } else {
    IssueTogether({&pending, 1});
  }
  return Work(std::move(operation));
}

void NcclCommunicator::Batch(const std::function<void()>& issue) {
  HL_CHECK(!batch_, "group ", name(), ": a batch within a batch");
  batch_.emplace();
  try {
    issue();
  } catch (...) {
    batch_.reset();
    throw;
  }
  const std::vector<Pending> all = std::move(*batch_);
  batch_.reset();
  if (!all.empty()) IssueTogether(all);
}

void NcclCommunicator::IssueTogether(std::span<const Pending> all) {
  Join();
  group_->Select();
  const std::string first = all[0].operation->what();
  const std::string what =
      all.size() == 1 ? first : Concat(first, " and ", all.size() - 1, " more in one call");
  AwaitProducers(all, what);
  for (const Pending& pending : all)
    HL_CHECK(all.size() == 1 || !SumsInOrder(pending.request), pending.operation->what(),
             ": a sum in the order of ranks cannot be part of a batch");
  const auto launch = std::make_shared<Launch>(what);
  launch->ready.Record(group_->stream(), what);
  if (all.size() == 1 && SumsInOrder(all[0].request)) {
    IssueOrderedSum(all[0].request, what);
  } else {
    group_->Use(what, [&](ncclComm_t comm) {
      if (all.size() == 1) return Enqueue(all[0].request, comm);
      // ncclGroupEnd returns the errors of the calls in the group.
      ncclGroupStart();
      for (const Pending& pending : all) Enqueue(pending.request, comm);
      return ncclGroupEnd();
    });
  }
  launch->done.Record(group_->stream(), what);
  for (const Pending& pending : all) {
    pending.operation->MarkIssued(launch);
    if (pending.request.recorder != nullptr)
      launch->records.push_back({pending.request.recorder, pending.request.number});
  }
  group_->watched()->Track(launch);
}

void NcclCommunicator::AwaitProducers(std::span<const Pending> all, const std::string& what) {
  std::vector<cudaStream_t> producers;
  for (const Pending& pending : all)
    if (std::ranges::find(producers, pending.request.producer) == producers.end())
      producers.push_back(pending.request.producer);
  for (const cudaStream_t producer : producers) {
    const Event written;  // CUDA frees it after the work that uses it
    written.Record(producer, what);
    CheckCuda(cudaStreamWaitEvent(group_->stream(), written.get(), 0), what);
  }
}

void NcclCommunicator::Join() {
  if (joined_) return;
  ncclUniqueId id = {};
  if (rank() == 0) {
    HL_CHECK_AS(ExitCode::kEnvironment, ncclGetUniqueId(&id) == ncclSuccess,
                "NCCL finds no network interface: ", ncclGetLastError(nullptr),
                ". Set NCCL_SOCKET_IFNAME to one that all hosts share.");
  }
  const double limit_s = device_->options.init_timeout_s;
  const std::string bytes =
      BroadcastBytes(*host_, std::string(reinterpret_cast<const char*>(&id), sizeof id), 0,
                     {"nccl_id", 0}, [&](Work& work) { WaitLonger(work, limit_s); });
  const Stopwatch begun;
  std::string failure;
  try {
    group_->Init(bytes, rank(), size(), role_);
  } catch (const CommError& error) {
    if (error.kind() == CommFailure::Kind::kAborted) throw;
    failure = error.message();
  }
  RequireAllJoined(*host_, name(), RootAddress(bytes), failure, limit_s, begun);
  joined_ = true;
}

bool NcclCommunicator::SumsInOrder(const Request& request) const {
  const bool reduces = request.kind == OpKind::kAllReduce || request.kind == OpKind::kReduceScatter;
  return size() > 1 && device_->ordered_sum && reduces && request.reduce == ReduceOp::kSum &&
         (request.in.dtype == DType::kF32 || request.in.dtype == DType::kF64);
}

// Every rank receives all shares of its part and adds them. For an all-reduce, it then sends the
// sum to all ranks.
void NcclCommunicator::IssueOrderedSum(const Request& request, const std::string& what) {
  const bool to_all = request.kind == OpKind::kAllReduce;
  const int64_t most = to_all ? (request.in.count + size() - 1) / size() : request.out.count;
  const auto part = [&](const TensorRef& whole, int of) {
    const int64_t begin = std::min(whole.count, of * most);
    return whole.Slice(begin, std::min(most, whole.count - begin));
  };
  const TensorRef own = to_all ? part(request.out, rank()) : request.out;
  TensorRef shares = own;
  shares.count = own.count * size();
  shares.data = group_->Staging(static_cast<size_t>(std::max<int64_t>(shares.bytes(), 4)), what);
  group_->Use(what, [&](ncclComm_t comm) {
    ncclGroupStart();
    for (int peer = 0; peer < size(); ++peer) {
      Send(part(request.in, peer), peer, comm);
      Receive(shares.Slice(peer * own.count, own.count), peer, comm);
    }
    return ncclGroupEnd();
  });
  if (own.count > 0) device_->ordered_sum(shares, size(), own, group_->stream());
  if (!to_all) return;
  group_->Use(what, [&](ncclComm_t comm) {
    ncclGroupStart();
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      Send(own, peer, comm);
      Receive(part(request.out, peer), peer, comm);
    }
    return ncclGroupEnd();
  });
}

void NcclCommunicator::Send(const TensorRef& piece, int to, ncclComm_t comm) const {
  if (piece.count == 0) return;
  ncclSend(piece.data, static_cast<size_t>(piece.count), ToNccl(piece.dtype), to, comm,
           group_->stream());
}

void NcclCommunicator::Receive(const TensorRef& piece, int from, ncclComm_t comm) const {
  if (piece.count == 0) return;
  ncclRecv(piece.data, static_cast<size_t>(piece.count), ToNccl(piece.dtype), from, comm,
           group_->stream());
}

ncclResult_t NcclCommunicator::Enqueue(const Request& request, ncclComm_t comm) const {
  const TensorRef& in = request.in;
  const TensorRef& out = request.out;
  const ncclDataType_t dtype = ToNccl(in.dtype);
  const cudaStream_t stream = group_->stream();
  switch (request.kind) {
    case OpKind::kAllReduce:
      return ncclAllReduce(in.data, out.data, static_cast<size_t>(in.count), dtype,
                           ToNccl(request.reduce), comm, stream);
    case OpKind::kReduceScatter:
      return ncclReduceScatter(in.data, out.data, static_cast<size_t>(out.count), dtype,
                               ToNccl(request.reduce), comm, stream);
    case OpKind::kAllGather:
      return ncclAllGather(in.data, out.data, static_cast<size_t>(in.count), dtype, comm, stream);
    case OpKind::kBroadcast:
      return ncclBroadcast(in.data, out.data, static_cast<size_t>(in.count), dtype, request.root,
                           comm, stream);
    case OpKind::kBarrier:
      return ncclAllReduce(group_->scratch(), group_->scratch(), 1, ncclInt32, ncclSum, comm,
                           stream);
    case OpKind::kAllGatherV:
    case OpKind::kAllToAll:
    case OpKind::kAllToAllV:
    case OpKind::kSendRecv:
      return EnqueuePieces(request, comm);
  }
  return ncclInvalidArgument;
}

// Operations that NCCL composes from point-to-point or rooted calls in one group.
ncclResult_t NcclCommunicator::EnqueuePieces(const Request& request, ncclComm_t comm) const {
  ncclGroupStart();
  switch (request.kind) {
    case OpKind::kAllGatherV: {
      int64_t begin = 0;
      for (int root = 0; root < size(); ++root) {
        const TensorRef piece = request.out.Slice(begin, request.counts[root]);
        begin += piece.count;
        if (piece.count == 0) continue;
        ncclBroadcast(root == rank() ? request.in.data : piece.data, piece.data,
                      static_cast<size_t>(piece.count), ToNccl(piece.dtype), root, comm,
                      group_->stream());
      }
      break;
    }
    case OpKind::kAllToAll: {
      const int64_t count = request.in.count / size();
      for (int peer = 0; peer < size(); ++peer) {
        Send(request.in.Slice(peer * count, count), peer, comm);
        Receive(request.out.Slice(peer * count, count), peer, comm);
      }
      break;
    }
    case OpKind::kAllToAllV: {
      int64_t sent = 0, received = 0;
      for (int peer = 0; peer < size(); ++peer) {
        Send(request.in.Slice(sent, request.counts[peer]), peer, comm);
        Receive(request.out.Slice(received, request.from_counts[peer]), peer, comm);
        sent += request.counts[peer];
        received += request.from_counts[peer];
      }
      break;
    }
    default:
      if (request.to >= 0) Send(request.in, request.to, comm);
      if (request.from >= 0) Receive(request.out, request.from, comm);
  }
  return ncclGroupEnd();
}

// Several ranks may share a GPU if this variable is 1. It is for tests of several ranks on a
// machine with one GPU: the ranks take turns on it, so each operation takes milliseconds.
constexpr char kShareGpu[] = "HALFLIFE_SHARE_GPU";

bool SharesGpu() {
  const char* const value = std::getenv(kShareGpu);
  return value != nullptr && std::string_view(value) == "1";
}

// Returns the version of the loaded library, for example 22809. Ranks that share a GPU may use a
// newer minor version, whose structs contain their own size and version.
int CheckVersion() {
  int loaded = 0;
  HL_CHECK_AS(ExitCode::kEnvironment, ncclGetVersion(&loaded) == ncclSuccess,
              "the NCCL library does not report its version");
  const int major = loaded / 10000, minor = loaded % 10000 / 100;
  const bool newer = SharesGpu() && minor > NCCL_MINOR;
  HL_CHECK_AS(ExitCode::kEnvironment, major == NCCL_MAJOR && (minor == NCCL_MINOR || newer),
              "the NCCL library is ", major, ".", minor, ", but this program was compiled against ",
              NCCL_MAJOR, ".", NCCL_MINOR,
              "; put the matching libnccl.so.2 first in LD_LIBRARY_PATH");
  return loaded;
}

void CheckOneGpuPerRank(Communicator& host, Device device) {
  char bus[32] = {};
  const cudaError_t result = cudaDeviceGetPCIBusId(bus, sizeof bus, device.index);
  HL_CHECK_AS(ExitCode::kEnvironment, result == cudaSuccess, "cuda:", device.index,
              " cannot be used: ", cudaGetErrorString(result));
  char name[256] = {};
  HL_CHECK(::gethostname(name, sizeof name - 1) == 0, "gethostname failed");
  const std::vector<std::string> all = AllGatherBytes(host, Concat(bus, " on ", name), {"gpu", 0});
  std::map<std::string, int> owner;
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    const auto [at, fresh] = owner.emplace(all[rank], rank);
    HL_CHECK_AS(ExitCode::kEnvironment, fresh || SharesGpu(), "ranks ", at->second, " and ", rank,
                " share the GPU ", all[rank],
                ". Start at most one rank per GPU. For a test of several ranks on one GPU, set ",
                kShareGpu, "=1.");
  }
}

// Makes NCCL accept several ranks on one GPU. Before 2.30 it refuses them only within a host, so
// each rank claims to be a host of its own, and all traffic uses sockets on the loopback interface.
// Values that the user has set take precedence.
void PrepareSharedGpu(int nccl_version, int rank) {
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), /*overwrite=*/0);
  };
  constexpr int kCanShare = 23000;
  if (nccl_version < kCanShare) {
    set("NCCL_HOSTID", Concat("halflife_rank_", rank));
  } else {
    set("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  }
  set("NCCL_SOCKET_IFNAME", "lo");
  set("NCCL_IB_DISABLE", "1");
  set("NCCL_NET_GDR_LEVEL", "LOC");
  set("NCCL_NVLS_ENABLE", "0");
  set("NCCL_MNNVL_ENABLE", "0");
  set("NCCL_MAX_CTAS", "2");  // The kernels of all ranks and groups must fit on the GPU together.
}

}  // namespace

std::unique_ptr<Communicator> MakeNcclCommunicator(Communicator& host, Device device,
                                                   std::string name, const NcclOptions& options) {
  const int version = CheckVersion();
  CheckOneGpuPerRank(host, device);
  if (SharesGpu()) PrepareSharedGpu(version, host.rank());
  // With this setting, several groups on one GPU run in the order in which the host issued them,
  // which is equal on all ranks.
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  return std::make_unique<NcclCommunicator>(host.Split(0, host.rank(), Concat("control_", name)),
                                            std::move(name),
                                            std::make_shared<DeviceGroups>(device, options));
}

}  // namespace halflife::dist
