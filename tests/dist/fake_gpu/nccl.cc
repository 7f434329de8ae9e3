// NCCL of the fake, with the semantics of 2.28.9:
//
// - A non-blocking call returns ncclInProgress, and a thread of NCCL's own completes it later. A
//   use of the communicator before that is ncclInvalidArgument.
// - The operations of one group call on one communicator are one kernel, and complete together.
// - The collectives of a kernel end once all ranks' kernels of the same number are resident. A send
//   ends once the kernel with its receive is resident. Unlike requests never end.
// - ncclCommAbort ends the kernels of its communicator on this device, and then blocks until the
//   whole device is idle, because it frees memory. So does ncclCommDestroy.
// - After an asynchronous error, polls return ncclRemoteError, and kernels never end.
#include "dist/fake_gpu/nccl.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <tuple>
#include <utility>

#include "dist/fake_gpu/internal.h"
#include "dist/request.h"

namespace halflife::fake {
namespace {

struct Call {
  enum class Kind : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kRecv };
  Kind kind = Kind::kAllReduce;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;  // as in NCCL's call
  ncclDataType_t dtype = ncclUint8;
  ncclRedOp_t op = ncclSum;
  int peer = 0;  // or root

  bool is_collective() const { return kind != Kind::kSend && kind != Kind::kRecv; }
};

DType ToDType(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclUint8:
      return DType::kU8;
    case ncclInt32:
      return DType::kI32;
    case ncclInt64:
      return DType::kI64;
    case ncclFloat32:
      return DType::kF32;
    case ncclFloat64:
      return DType::kF64;
    case ncclBfloat16:
      return DType::kBF16;
  }
  return DType::kU8;
}

size_t BytesOf(const Call& call) { return call.count * SizeOf(ToDType(call.dtype)); }

dist::ReduceOp ToReduceOp(ncclRedOp_t op) {
  return op == ncclSum   ? dist::ReduceOp::kSum
         : op == ncclMax ? dist::ReduceOp::kMax
                         : dist::ReduceOp::kMin;
}

struct Group;

// Kernels that run together: those of one collective, or a send and its receive.
struct Meeting {
  std::vector<std::vector<Call>> calls;  // by participant; empty until its kernel is resident
  size_t resident = 0;
  bool unlike = false;
  bool done = false;
  Clock::time_point due = {};
  double begin_us = 0, end_us = 0;
};

}  // namespace
}  // namespace halflife::fake

struct ncclComm {
  std::shared_ptr<halflife::fake::Group> group;
  halflife::fake::Gpu* gpu = nullptr;
  int rank = 0;
  int max_ctas = 32;
  int jobs = 0;  // calls that NCCL's threads have not completed
  uint64_t next_collective = 0;
  std::map<int, uint64_t> next_send = {}, next_recv = {};  // by peer
  bool aborted = false;
  std::atomic<bool> polled{false};
  std::string last_error = {};
};

namespace halflife::fake {
namespace {

struct Group {
  int number = 0, size = 0, joined = 0;
  std::vector<std::unique_ptr<ncclComm>> comms;  // by rank; handles live as long as the world
  // By (-1, -1, number) for collectives, and by (from, to, number) for messages.
  std::map<std::tuple<int, int, uint64_t>, std::shared_ptr<Meeting>> meetings;
};

// --- data ---

// In place or not, every input is read before the first output is written.
void Reduce(const std::vector<const Call*>& ranks) {
  const Call& any = *ranks[0];
  const size_t parts = any.kind == Call::Kind::kReduceScatter ? ranks.size() : 1;
  const size_t bytes = BytesOf(any);
  std::vector<char> sums(bytes * parts);
  std::vector<const void*> in;
  for (const Call* call : ranks) in.push_back(call->in);
  const auto count = static_cast<int64_t>(any.count * parts);
  const DType dtype = ToDType(any.dtype);
  const dist::ReduceOp op = ToReduceOp(any.op);
  if (TheWorld().options.seeded_sums && (dtype == DType::kF32 || dtype == DType::kF64)) {
    std::ranges::rotate(in, in.begin() + static_cast<int>(TheWorld().options.seed % in.size()));
    std::memcpy(sums.data(), in[0], sums.size());
    for (size_t rank = 1; rank < in.size(); ++rank) {  // as along a ring
      const void* const terms[] = {sums.data(), in[rank]};
      dist::OrderedReduce(dtype, op, terms, sums.data(), count);
    }
  } else {
    dist::OrderedReduce(dtype, op, in, sums.data(), count);
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    std::memcpy(ranks[rank]->out, sums.data() + (parts == 1 ? 0 : rank * bytes), bytes);
}

void Gather(const std::vector<const Call*>& ranks) {
  std::string all;
  for (const Call* call : ranks) all.append(static_cast<const char*>(call->in), BytesOf(*call));
  for (const Call* call : ranks) std::memcpy(call->out, all.data(), all.size());
}

void Broadcast(const std::vector<const Call*>& ranks) {
  const Call& root = *ranks[static_cast<size_t>(ranks[0]->peer)];
  const std::string bytes(static_cast<const char*>(root.in), BytesOf(root));
  for (const Call* call : ranks) std::memcpy(call->out, bytes.data(), bytes.size());
}

bool Unlike(const Meeting& meeting) {
  const std::vector<Call>& first = meeting.calls[0];
  for (const std::vector<Call>& own : meeting.calls) {
    if (own.size() != first.size()) return true;
    for (size_t i = 0; i < own.size(); ++i) {
      if (BytesOf(own[i]) != BytesOf(first[i])) return true;
      if (own[i].is_collective() && (own[i].kind != first[i].kind || own[i].peer != first[i].peer ||
                                     own[i].dtype != first[i].dtype))
        return true;
    }
  }
  return false;
}

void MoveData(const Meeting& meeting) {
  if (!meeting.calls[0][0].is_collective()) {
    const Call &send = meeting.calls[0][0], &recv = meeting.calls[1][0];
    std::memmove(recv.out, send.in, BytesOf(send));
    return;
  }
  for (size_t i = 0; i < meeting.calls[0].size(); ++i) {
    std::vector<const Call*> ranks;
    for (const std::vector<Call>& calls : meeting.calls) ranks.push_back(&calls[i]);
    switch (ranks[0]->kind) {
      case Call::Kind::kAllGather:
        Gather(ranks);
        break;
      case Call::Kind::kBroadcast:
        Broadcast(ranks);
        break;
      default:
        Reduce(ranks);
    }
  }
}

// --- kernels ---

class Kernel final : public Part {
 public:
  Kernel(ncclComm& comm, const std::vector<Call>& calls) : comm_(comm), calls_(calls) {
    std::vector<Call> collectives;
    for (const Call& call : calls) {
      if (call.kind == Call::Kind::kSend) {
        plan_.push_back({{comm.rank, call.peer, comm.next_send[call.peer]++}, 0, 2, {call}});
      } else if (call.kind == Call::Kind::kRecv) {
        plan_.push_back({{call.peer, comm.rank, comm.next_recv[call.peer]++}, 1, 2, {call}});
      } else {
        collectives.push_back(call);
      }
    }
    if (collectives.empty()) return;
    plan_.push_back({{-1, -1, comm.next_collective++},
                     static_cast<size_t>(comm.rank),
                     static_cast<size_t>(comm.group->size),
                     std::move(collectives)});
  }

  int ctas() const override { return comm_.max_ctas; }
  int group() const override { return comm_.group->number; }
  std::string name() const override {
    constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                      "broadcast",  "send",           "recv"};
    const std::string first = kNames[static_cast<size_t>(calls_[0].kind)];
    return calls_.size() == 1 ? first : first + " + " + std::to_string(calls_.size() - 1);
  }

  void Start(double begin_us) override {
    for (const Attendance& own : plan_) {
      std::shared_ptr<Meeting>& entry = comm_.group->meetings[own.key];
      if (entry == nullptr) entry = std::make_shared<Meeting>();
      const std::shared_ptr<Meeting> meeting = entry;
      meetings_.push_back(meeting);
      meeting->calls.resize(own.size);
      meeting->calls[own.place] = own.calls;
      meeting->begin_us = std::max(meeting->begin_us, begin_us);
      if (++meeting->resident < own.size) continue;
      comm_.group->meetings.erase(own.key);
      meeting->unlike = Unlike(*meeting);
      if (meeting->unlike) ++TheWorld().unlike;
      meeting->due = TheWorld().Soon();
    }
  }

  bool Ended(double* end_us) override {
    if (comm_.aborted) return true;
    bool all = true;
    for (const std::shared_ptr<Meeting>& meeting : meetings_) {
      all &= meeting->done || TryEnd(*meeting);
      *end_us = std::max(*end_us, meeting->end_us);
    }
    return all;
  }

 private:
  struct Attendance {
    std::tuple<int, int, uint64_t> key;
    size_t place, size;  // of this rank, among the participants
    std::vector<Call> calls;
  };

  bool TryEnd(Meeting& meeting) {
    if (meeting.resident < meeting.calls.size() || meeting.unlike) return false;
    for (const auto& comm : comm_.group->comms)
      if (comm->gpu->dead || comm->gpu->has_remote_error || comm->aborted) return false;
    World& world = TheWorld();
    if (Clock::now() < meeting.due) {
      world.WakeAt(meeting.due);
      return false;
    }
    MoveData(meeting);
    meeting.done = true;
    size_t bytes = 0;
    for (const Call& call : meeting.calls[0]) bytes += BytesOf(call);
    meeting.end_us = meeting.begin_us + world.options.collective_us +
                     static_cast<double>(bytes) / world.options.bytes_per_us;
    return true;
  }

  ncclComm& comm_;
  const std::vector<Call> calls_;
  std::vector<Attendance> plan_;
  std::vector<std::shared_ptr<Meeting>> meetings_;
};

// --- group calls ---

struct Queued {
  ncclComm_t comm;
  cudaStream_t stream;
  Call call;
};
struct GroupCall {
  int depth = 0;
  std::vector<Queued> queued;
};

GroupCall& ThisGroupCall() {
  thread_local GroupCall call;
  return call;
}

ncclResult_t Refuse(ncclComm& comm) {
  comm.last_error = "the communicator was used before the previous operation returned";
  return ncclInvalidArgument;
}

// Lets a thread of NCCL's own launch one kernel per communicator.
ncclResult_t LaunchAll(std::vector<Queued> queued) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  if (Gpu* const own = CurrentRankGpu()) ++own->group_calls;
  world.Spend(10 + static_cast<double>(queued.size()));
  std::map<std::pair<ncclComm_t, cudaStream_t>, std::vector<Call>> kernels;
  for (const Queued& one : queued) kernels[{one.comm, one.stream}].push_back(one.call);
  for (const auto& [key, calls] : kernels)
    if (key.first->jobs > 0) return Refuse(*key.first);
  for (const auto& [key, calls] : kernels) {
    const auto [comm, stream] = key;
    ++comm->jobs;
    const auto part = std::make_shared<Kernel>(*comm, calls);
    world.AddJob([&world, comm, stream, part, issued_us = world.NowUs()] {
      if (!world.TryPush(stream, {.kind = Entry::Kind::kCollective,
                                  .issued_us = issued_us,
                                  .sms = part->ctas(),
                                  .part = part}))
        return false;
      --comm->jobs;
      return true;
    });
  }
  return kernels.empty() ? ncclSuccess : ncclInProgress;
}

ncclResult_t Add(ncclComm_t comm, cudaStream_t stream, const Call& call) {
  ThisGroupCall().queued.push_back({comm, stream, call});
  if (ThisGroupCall().depth > 0) return ncclSuccess;
  return LaunchAll(std::exchange(ThisGroupCall().queued, {}));
}

}  // namespace
}  // namespace halflife::fake

// --- NCCL's API ---

using halflife::fake::Add;
using halflife::fake::Call;
using halflife::fake::TheWorld;
using halflife::fake::World;

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError       ? "remote process exited or there was a network error"
         : result == ncclInvalidArgument ? "invalid argument"
                                         : "an error of the fake";
}
const char* ncclGetLastError(ncclComm_t comm) {
  return comm == nullptr ? "" : comm->last_error.c_str();
}
ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<uint16_t> next{1};
  *id = {};
  sockaddr_in root = {};
  root.sin_family = AF_INET;
  root.sin_port = htons(next++);
  root.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(id->internal + 8, &root, sizeof root);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  using halflife::fake::Group;
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  std::shared_ptr<void>& entry = world.rendezvous[std::string(id.internal, sizeof id.internal)];
  if (entry == nullptr) entry = std::make_shared<Group>();
  const auto group = std::static_pointer_cast<Group>(entry);
  if (group->comms.empty()) {
    group->number = world.num_groups++;
    group->size = size;
    group->comms.resize(static_cast<size_t>(size));
  }
  auto made = std::make_unique<ncclComm>();
  made->group = group;
  made->gpu = &world.current();
  made->rank = rank;
  made->jobs = 1;
  if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT) made->max_ctas = config->maxCTAs;
  *comm = made.get();  // set at once, although the rendezvous has not ended
  group->comms[static_cast<size_t>(rank)] = std::move(made);
  ++group->joined;
  ++world.current().live_groups;
  world.AddJob([&world, group, rank] {
    if (group->joined < group->size || world.options.unreachable) return false;
    --group->comms[static_cast<size_t>(rank)]->jobs;
    return true;
  });
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  World& world = TheWorld();
  if (comm->polled.exchange(true)) {
    const std::lock_guard lock(world.mutex);
    ++world.double_joins;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(2));
  {
    const std::lock_guard lock(world.mutex);
    *state = comm->gpu->has_remote_error ? ncclRemoteError
             : comm->jobs > 0            ? ncclInProgress
                                         : ncclSuccess;
    if (world.ended) *state = ncclSystemError;
  }
  comm->polled = false;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  if (comm->jobs > 0) return halflife::fake::Refuse(*comm);
  ++comm->jobs;
  world.AddJob([comm] { return --comm->jobs, true; });
  return ncclInProgress;
}

namespace {

ncclResult_t FreeGroup(ncclComm_t comm, bool abort) {
  World& world = TheWorld();
  std::unique_lock lock(world.mutex);
  comm->aborted |= abort;
  world.changed.notify_all();
  const cudaError_t error = world.Block(lock, [&] { return world.Idle(*comm->gpu); });
  if (error != cudaSuccess) return ncclUnhandledCudaError;
  --comm->gpu->live_groups;
  return ncclSuccess;
}

}  // namespace

ncclResult_t ncclCommDestroy(ncclComm_t comm) { return FreeGroup(comm, /*abort=*/false); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return FreeGroup(comm, /*abort=*/true); }

ncclResult_t ncclGroupStart() {
  ++halflife::fake::ThisGroupCall().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  halflife::fake::GroupCall& call = halflife::fake::ThisGroupCall();
  if (--call.depth > 0) return ncclSuccess;
  return halflife::fake::LaunchAll(std::exchange(call.queued, {}));
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Add(comm, stream, {Call::Kind::kAllReduce, in, out, count, dtype, op});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t out_count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Add(comm, stream, {Call::Kind::kReduceScatter, in, out, out_count, dtype, op});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t in_count, ncclDataType_t dtype,
                           ncclComm_t comm, cudaStream_t stream) {
  return Add(comm, stream, {Call::Kind::kAllGather, in, out, in_count, dtype});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return Add(comm, stream,
             {.kind = Call::Kind::kBroadcast,
              .in = in,
              .out = out,
              .count = count,
              .dtype = dtype,
              .peer = root});
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t dtype, int to, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add(comm, stream,
             {.kind = Call::Kind::kSend, .in = in, .count = count, .dtype = dtype, .peer = to});
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t dtype, int from, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add(comm, stream,
             {.kind = Call::Kind::kRecv, .out = out, .count = count, .dtype = dtype, .peer = from});
}
