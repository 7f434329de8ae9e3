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

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/tensor_ref.h"
#include "dist/work.h"

namespace halflife::dist {

// No average, because only the caller knows the token count.
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

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;

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
  virtual Work Broadcast(TensorRef inout, int root, OpTag tag, cudaStream_t producer) = 0;
  // `to` or `from` may be -1, which means no peer.
  virtual Work SendRecv(TensorRef send, int to, TensorRef recv, int from, OpTag tag,
                        cudaStream_t producer) = 0;
  virtual Work Barrier(OpTag tag) = 0;
  // Collective. Ranks of one `color` form a group, in the order of (key, rank). Ranks with a
  // negative color receive null.
  virtual std::unique_ptr<Communicator> Split(int color, int key, std::string name) = 0;

  // Idempotent and thread-safe. All pending and later operations throw CommError kAborted.
  virtual void Abort(const std::string& cause) noexcept = 0;
};

// Helpers for host data of variable length, such as manifests, votes and handshakes.
std::string BroadcastBytes(Communicator& comm, std::string bytes, int root, OpTag tag);
// Returns rank r's bytes at index r, on every rank.
std::vector<std::string> AllGatherBytes(Communicator& comm, const std::string& bytes, OpTag tag);

// A group of one rank, without MPI, NCCL or threads. On a GPU its copies run on the producer
// stream, so consumers on that stream need not wait for them.
std::unique_ptr<Communicator> MakeSelfCommunicator(std::string name,
                                                   Device::Kind tensors = Device::Kind::kCpu);

}  // namespace halflife::dist
