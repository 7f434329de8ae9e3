// A group of ranks that move and sum tensors together. Five kinds: MPI for CPU tensors
// (MakeMpiCommunicator), NCCL for CUDA tensors (MakeNcclCommunicator), threads of one process
// (LocalWorld), one rank alone (MakeSelfCommunicator), and a Rehearsal's, which move nothing. On
// the CPU all sum pairwise over ranks, so MPI and Local agree bit for bit.
//
// Rules: every rank of a group issues the same operations in the same order; operations of one
// communicator complete in issue order; counts may be zero; a size-1 group's operations are copies
// or no-ops.
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

enum class ReduceOp : uint8_t { kSum, kMax, kMin };  // no average: the caller knows the token count

struct OpTag {
  const char* what;  // a string literal; appears in every error and record
  int index;
};

struct CommFailure {
  enum class Kind { kTimeout, kPeerLost, kLibrary, kDesync, kAborted };
  Kind kind = Kind::kLibrary;
  std::string text;
};

// exit code: kTimeout -> 71, kPeerLost and kAborted -> 72, the rest -> 70.
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

  // An operation starts after all work queued on `producer` at the call (CUDA; null on the CPU:
  // data is ready now).
  virtual Work AllReduce(TensorRef inout, ReduceOp op, OpTag tag, cudaStream_t producer) = 0;
  // in = size() * out.count elements; slice r goes to rank r. `out` may be its own slice of `in`.
  virtual Work ReduceScatter(TensorRef in, TensorRef out, ReduceOp op, OpTag tag,
                             cudaStream_t producer) = 0;
  // `in` may alias its own slice of `out`.
  virtual Work AllGather(TensorRef in, TensorRef out, OpTag tag, cudaStream_t producer) = 0;
  virtual Work AllGatherV(TensorRef in, TensorRef out, std::span<const int64_t> counts, OpTag tag,
                          cudaStream_t producer) = 0;
  virtual Work AllToAll(TensorRef in, TensorRef out, OpTag tag, cudaStream_t producer) = 0;
  virtual Work Broadcast(TensorRef inout, int root, OpTag tag, cudaStream_t producer) = 0;
  // `to` or `from` may be -1: absent.
  virtual Work SendRecv(TensorRef send, int to, TensorRef recv, int from, OpTag tag,
                        cudaStream_t producer) = 0;
  virtual Work Barrier(OpTag tag) = 0;
  // Collective. Ranks of one `color` form a group, in the order of (key, rank); a negative color
  // gets null.
  virtual std::unique_ptr<Communicator> Split(int color, int key, std::string name) = 0;

  // Idempotent, from any thread: all pending and later operations throw CommError kAborted.
  virtual void Abort(const std::string& cause) noexcept = 0;
};

// Host-side helpers on top of the interface (variable-length bytes, for manifests, votes and
// hellos).
std::string BroadcastBytes(Communicator& comm, std::string bytes, int root, OpTag tag);
// Rank r's bytes at index r, on every rank.
std::vector<std::string> AllGatherBytes(Communicator& comm, const std::string& bytes, OpTag tag);

// A group of one: no MPI, no NCCL, no threads. On a GPU its copies are on the producer's stream, so
// that consumers on that stream need not wait for them.
std::unique_ptr<Communicator> MakeSelfCommunicator(std::string name,
                                                   Device::Kind tensors = Device::Kind::kCpu);

}  // namespace halflife::dist
