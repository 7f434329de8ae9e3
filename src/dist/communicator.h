// A group of ranks that move and sum tensors together. There are five kinds:
//
// - MPI, for CPU tensors (MakeMpiCommunicator)
// - NCCL, for CUDA tensors (MakeNcclCommunicator)
// - threads of one process (LocalWorld)
// - a single rank (MakeSelfCommunicator)
// - groups of a Rehearsal, which move nothing
//
// On the CPU all of them sum pairwise over ranks, so MPI and Local agree bit for bit.
//
// Rules:
//
// - Every rank of a group issues the same operations in the same order.
// - The operations of one communicator complete in issue order.
// - Counts may be zero.
// - The operations of a group of size 1 are copies or no-ops.
//
//   comm.AllReduce(Ref(norms, 24), ReduceOp::kSum, {"step_scalars", 0}, nullptr).WaitHost();
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/tensor_ref.h"

namespace halflife::dist {

// A collective in flight. Move-only. It borrows the buffers: the caller keeps them alive and in
// place until the Work is done.
//
//   Work work = comm.AllReduce(Ref(grad, count), ReduceOp::kSum, {"grad_bucket", 7}, nullptr);
//   Compute();  // while the ranks exchange
//   work.WaitHost();
//
// Communicators implement Operation for each kind of operation. Its destructor waits for an
// unfinished operation and never throws.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual bool Done() = 0;
  virtual void WaitHost() = 0;                     // throws CommError
  virtual void WaitOn(cudaStream_t consumer) = 0;  // CPU: the same as WaitHost
};

class Work {
 public:
  Work() = default;  // already done
  explicit Work(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  Work(Work&&) = default;
  Work& operator=(Work&&) = default;

  bool Done() { return !operation_ || operation_->Done(); }
  void WaitHost() {
    if (operation_) operation_->WaitHost();
  }
  void WaitOn(cudaStream_t consumer) {
    if (operation_) operation_->WaitOn(consumer);
  }

 private:
  std::shared_ptr<Operation> operation_;
};

// Waits where the result of `work` is read next. Returns the seconds that the host was blocked.
//
// - On the CPU, the host waits.
// - On a GPU, only the stream `consumer` waits, and the host queues further work. The poller of the
//   group and the watchdog still see the operation until it ends. Communicator::TakeStreamWaits
//   returns the time that the stream idled. Buffers of the operation may be freed or reused in the
//   order of `consumer`.
double AwaitResult(Work work, cudaStream_t consumer);

// There is no average, because only the caller has the token count.
enum class ReduceOp : uint8_t { kSum, kMax, kMin };

struct OpTag {
  const char* what;  // a string literal; appears in errors and records
  int index;
};

struct CommFailure {
  enum class Kind { kTimeout, kPeerLost, kLibrary, kDesync, kAborted };
  Kind kind = Kind::kLibrary;
  std::string text;
};

// Exit codes: kTimeout 71, kPeerLost and kAborted 72, all others 70.
class CommError : public Error {
 public:
  explicit CommError(CommFailure failure);
  CommFailure::Kind kind() const { return kind_; }

 private:
  CommFailure::Kind kind_;
};

// Adds `num_parts` equal parts of fp32, which follow each other in `parts`, in their order by the
// tree of core/pairwise_sum.h: on a GPU, on a stream. May overwrite the parts.
using OrderedSum =
    std::function<void(TensorRef parts, int num_parts, TensorRef out, cudaStream_t stream)>;

// The purpose of a group's operations. On a GPU the role sets the priority of the group's stream
// and the number of thread blocks that an operation may occupy:
//
// - kRows: states of shared rows, for which compute waits at once. The greatest priority, 8 blocks.
// - kParameters: weights that compute needs soon. The priority of compute, 16 blocks.
// - kGradients: sums that have the whole backward pass to travel. The least priority, below
//   compute, 16 blocks.
//
// Training computes on a stream of priority kComputePriority.
enum class GroupRole : uint8_t { kGradients, kParameters, kRows };
// CUDA's priorities: a smaller number is served first, and 0 is the least.
inline constexpr int kComputePriority = -1;

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  // Returns the rank in the world of a rank of this group, for messages.
  virtual int WorldRank(int rank) const { return rank; }

  // Every operation starts after all work that is queued on `producer` at the time of the call. On
  // the CPU `producer` is null and the data must be ready.
  virtual Work AllReduce(TensorRef inout, ReduceOp op, OpTag tag, cudaStream_t producer) = 0;
  // `in` has size() * out.count elements; slice r goes to rank r. `out` may be this rank's slice of
  // `in`.
  virtual Work ReduceScatter(TensorRef in, TensorRef out, ReduceOp op, OpTag tag,
                             cudaStream_t producer) = 0;
  // `in` may be this rank's slice of `out`.
  virtual Work AllGather(TensorRef in, TensorRef out, OpTag tag, cudaStream_t producer) = 0;
  virtual Work AllGatherV(TensorRef in, TensorRef out, std::span<const int64_t> counts, OpTag tag,
                          cudaStream_t producer) = 0;
  virtual Work AllToAll(TensorRef in, TensorRef out, OpTag tag, cudaStream_t producer) = 0;
  // Sends `to_counts[r]` elements of `in` to each rank r and receives `from_counts[r]` elements of
  // `out` from it. Both tensors are in the order of ranks. A pair of ranks agrees on its count.
  virtual Work AllToAllV(TensorRef in, TensorRef out, std::span<const int64_t> to_counts,
                         std::span<const int64_t> from_counts, OpTag tag,
                         cudaStream_t producer) = 0;
  virtual Work Broadcast(TensorRef inout, int root, OpTag tag, cudaStream_t producer) = 0;
  // `to` or `from` may be -1, which means no peer.
  virtual Work SendRecv(TensorRef send, int to, TensorRef recv, int from, OpTag tag,
                        cudaStream_t producer) = 0;
  virtual Work Barrier(OpTag tag) = 0;
  // Calls `issue`, which issues operations of this group and waits for none of them. NCCL receives
  // all of them in one group call, so their cost to the host is that of one operation, and they
  // complete together. Other groups issue them one by one.
  virtual void Batch(const std::function<void()>& issue) { issue(); }
  // Collective. Ranks of one `color` form a group, in the order of (key, rank). Ranks with a
  // negative color receive null.
  virtual std::unique_ptr<Communicator> Split(int color, int key, std::string name,
                                              GroupRole role = GroupRole::kGradients) = 0;
  // Returns the seconds that streams have idled in Work::WaitOn since the last call of this
  // function, by OpTag::what. It contains only waits that have ended, so call it after the stream
  // was synchronised. CUDA groups only: on the CPU, the time of a wait is the time that its caller
  // spends in it.
  virtual std::map<std::string, double> TakeStreamWaits() { return {}; }
  // Makes this group and all other groups of its device sum fp32 in the order of ranks, with the
  // given function. The bits then do not depend on the library's choices or on the sizes of
  // messages. Every rank sends to each other rank its share of that rank's part, which are as many
  // bytes as in a ring. The group holds memory for the shares of its largest part. Call it on all
  // ranks before the first operation. Does nothing on the CPU, where all sums are in this order.
  virtual void SumInOrder(OrderedSum) {}
  // Sets whether TakeStreamWaits contains the waits that are issued from now on. Default: true.
  virtual void CountStreamWaits(bool) {}

  // Idempotent and thread-safe. All pending and later operations throw CommError kAborted.
  virtual void Abort(const std::string& cause) noexcept = 0;
};

// Helpers for host data of variable length, such as manifests, votes and handshakes. `wait`
// replaces Work::WaitHost, for a caller with a deadline of its own.
using Waiter = std::function<void(Work&)>;
std::string BroadcastBytes(Communicator& comm, std::string bytes, int root, OpTag tag,
                           const Waiter& wait = {});
// Returns rank r's bytes at index r on rank 0, and nothing on the others. The bytes go up a binary
// tree: 2 (W - 1) messages.
std::vector<std::string> GatherBytes(Communicator& comm, const std::string& bytes, OpTag tag,
                                     const Waiter& wait = {});
// Returns rank r's bytes at index r, on every rank. Takes W (W - 1) messages, so it is not for
// votes of large runs.
std::vector<std::string> AllGatherBytes(Communicator& comm, const std::string& bytes, OpTag tag);

// Returns a group of one rank, without MPI, NCCL or threads. On a GPU its copies run on the
// producer stream, so consumers on that stream need not wait for them.
std::unique_ptr<Communicator> MakeSelfCommunicator(std::string name,
                                                   Device::Kind tensors = Device::Kind::kCpu);

}  // namespace halflife::dist
