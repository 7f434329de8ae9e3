#include "dist/nccl_communicator.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <map>
#include <numeric>
#include <thread>

#include "core/log.h"
#include "dist/nccl_group.h"
#include "dist/request.h"

namespace halflife::dist {
namespace {

using nccl::CheckCuda;
using nccl::Clock;
using nccl::Event;
using nccl::Group;

constexpr auto kPollInterval = std::chrono::microseconds(20);

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

class NcclOperation final : public Operation {
 public:
  NcclOperation(std::shared_ptr<Group> group, std::string what)
      : group_(std::move(group)),
        what_(std::move(what)),
        deadline_(DeadlineIn(group_->options().timeout_s)),
        exceptions_(std::uncaught_exceptions()) {}

  ~NcclOperation() override {
    if (handed_over_ || cudaEventQuery(done_.get()) == cudaSuccess) return;
    if (std::uncaught_exceptions() > exceptions_) {  // no other rank may ever take part
      group_->Abort(Concat(what_, " was abandoned by an exception"));
      return;
    }
    try {
      WaitHost();
    } catch (const std::exception& error) {
      HL_WARN("dist", error.what());
    }
  }

  void MarkIssued() { CheckCuda(cudaEventRecord(done_.get(), group_->stream()), what_); }

  bool Done() override {
    const cudaError_t state = cudaEventQuery(done_.get());
    if (state == cudaErrorNotReady) return false;
    CheckCuda(state, what_);
    return true;
  }

  void WaitHost() override {
    while (!Done()) {
      group_->CheckHealth(what_);
      if (Clock::now() > deadline_) {
        const std::string text =
            Concat("timeout: ", what_, " has waited ", group_->options().timeout_s, " s");
        group_->Abort(text);  // ends the kernel, so that the stream can be destroyed
        throw CommError({CommFailure::Kind::kTimeout, text});
      }
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  void WaitOn(cudaStream_t consumer) override {
    group_->CheckHealth(what_);
    CheckCuda(cudaStreamWaitEvent(consumer, done_.get(), 0), what_);
    handed_over_ = true;
  }

 private:
  const std::shared_ptr<Group> group_;
  const std::string what_;
  const Clock::time_point deadline_;
  const int exceptions_;  // exceptions in flight when the operation was issued
  const Event done_;
  bool handed_over_ = false;  // a stream waits for the operation, so the host need not
};

class NcclCommunicator final : public RequestCommunicator {
 public:
  explicit NcclCommunicator(std::shared_ptr<Group> group)
      : RequestCommunicator(group->rank(), group->size(), group->name()),
        group_(std::move(group)) {}

  void Abort(const std::string& cause) noexcept override { group_->Abort(cause); }

 private:
  std::unique_ptr<RequestCommunicator> SplitGroup(int color, int key, std::string name) override {
    std::shared_ptr<Group> made = group_->Split(color, key, std::move(name));
    return made ? std::make_unique<NcclCommunicator>(std::move(made)) : nullptr;
  }
  Device::Kind device_kind() const override { return Device::Kind::kCuda; }
  Work Issue(Request request, int64_t seq) override;
  ncclResult_t Enqueue(const Request& request, ncclComm_t comm) const;
  ncclResult_t EnqueuePieces(const Request& request, ncclComm_t comm) const;

  const std::shared_ptr<Group> group_;
};

Work NcclCommunicator::Issue(Request request, int64_t seq) {
  if (request.kind != OpKind::kBarrier && request.in.count == 0 && request.out.count == 0 &&
      request.kind != OpKind::kSendRecv) {
    return {};  // these counts are equal on all ranks
  }
  group_->Select();
  const std::string what = Describe(request, name(), seq);
  const Event ready;  // CUDA frees it after the work that uses it
  CheckCuda(cudaEventRecord(ready.get(), request.producer), what);
  CheckCuda(cudaStreamWaitEvent(group_->stream(), ready.get(), 0), what);
  auto operation = std::make_shared<NcclOperation>(group_, what);
  group_->Use(what, DeadlineIn(group_->options().timeout_s),
              [&](ncclComm_t comm) { return Enqueue(request, comm); });
  operation->MarkIssued();
  return Work(std::move(operation));
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
    case OpKind::kSendRecv:
      return EnqueuePieces(request, comm);
  }
  return ncclInvalidArgument;
}

// Operations that NCCL composes from point-to-point or rooted calls in one group. ncclGroupEnd
// returns the errors of these calls.
ncclResult_t NcclCommunicator::EnqueuePieces(const Request& request, ncclComm_t comm) const {
  const cudaStream_t stream = group_->stream();
  const auto send = [&](const TensorRef& piece, int to) {
    if (piece.count == 0) return;
    ncclSend(piece.data, static_cast<size_t>(piece.count), ToNccl(piece.dtype), to, comm, stream);
  };
  const auto receive = [&](const TensorRef& piece, int from) {
    if (piece.count == 0) return;
    ncclRecv(piece.data, static_cast<size_t>(piece.count), ToNccl(piece.dtype), from, comm, stream);
  };
  ncclGroupStart();
  switch (request.kind) {
    case OpKind::kAllGatherV: {
      int64_t begin = 0;
      for (int root = 0; root < size(); ++root) {
        const TensorRef piece = request.out.Slice(begin, request.counts[root]);
        begin += piece.count;
        if (piece.count == 0) continue;
        ncclBroadcast(root == rank() ? request.in.data : piece.data, piece.data,
                      static_cast<size_t>(piece.count), ToNccl(piece.dtype), root, comm, stream);
      }
      break;
    }
    case OpKind::kAllToAll: {
      const int64_t count = request.in.count / size();
      for (int peer = 0; peer < size(); ++peer) {
        send(request.in.Slice(peer * count, count), peer);
        receive(request.out.Slice(peer * count, count), peer);
      }
      break;
    }
    default:
      if (request.to >= 0) send(request.in, request.to);
      if (request.from >= 0) receive(request.out, request.from);
  }
  return ncclGroupEnd();
}

void CheckVersion() {
  int loaded = 0;
  HL_CHECK_AS(ExitCode::kEnvironment, ncclGetVersion(&loaded) == ncclSuccess,
              "the NCCL library does not report its version");
  const int major = loaded / 10000, minor = loaded % 10000 / 100;
  HL_CHECK_AS(ExitCode::kEnvironment, major == NCCL_MAJOR && minor == NCCL_MINOR,
              "the NCCL library is ", major, ".", minor, ", but this program was compiled against ",
              NCCL_MAJOR, ".", NCCL_MINOR,
              "; put the matching libnccl.so.2 first in LD_LIBRARY_PATH");
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
    HL_CHECK_AS(ExitCode::kEnvironment, fresh, "ranks ", at->second, " and ", rank,
                " share the GPU ", all[rank], "; start at most one rank per GPU");
  }
}

}  // namespace

std::unique_ptr<Communicator> MakeNcclCommunicator(Communicator& host, Device device,
                                                   std::string name, const NcclOptions& options) {
  CheckVersion();
  CheckOneGpuPerRank(host, device);
  // With this setting, several groups on one GPU run in the order in which the host issued them,
  // which is equal on all ranks.
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  auto group = std::make_shared<Group>(device, std::move(name), options);
  ncclUniqueId id = {};
  if (host.rank() == 0) {
    HL_CHECK_AS(ExitCode::kEnvironment, ncclGetUniqueId(&id) == ncclSuccess,
                "NCCL finds no network interface: ", ncclGetLastError(nullptr),
                "; set NCCL_SOCKET_IFNAME");
  }
  const std::string bytes = BroadcastBytes(
      host, std::string(reinterpret_cast<const char*>(&id), sizeof id), 0, {"nccl_id", 0});
  group->Init(bytes, host.rank(), host.size());
  return std::make_unique<NcclCommunicator>(std::move(group));
}

}  // namespace halflife::dist
