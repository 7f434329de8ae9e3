// The parts that the implementations of communicators share:
//
// - Request: a collective as data. The Self, Local, MPI and NCCL communicators execute it, compare
//   it between ranks and describe it in errors.
// - RequestCommunicator: their base class.
// - The rule for the members of split groups, the deadline of a wait, and the choice of the error
//   that is reported if several ranks of a process fail.
// - OrderedReduce: the only sum on the CPU.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/tensor_ref.h"
#include "dist/communicator.h"

namespace halflife::dist {

class FlightRecorder;

enum class OpKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllGatherV,
  kAllToAll,
  kBroadcast,
  kSendRecv,
  kBarrier,
  kAllToAllV  // last, because flight records store the number
};

struct Request {
  OpKind kind = OpKind::kBarrier;
  OpTag tag = {"", 0};
  TensorRef in = {};  // the same memory as `out` for all-reduce and broadcast
  TensorRef out = {};
  ReduceOp reduce = ReduceOp::kSum;
  int root = -1;                          // broadcast
  int to = -1, from = -1;                 // send-receive; -1: no peer
  std::vector<int64_t> counts = {};       // all-gather-v: of each rank; all-to-all-v: to each rank
  std::vector<int64_t> from_counts = {};  // all-to-all-v: from each rank
  cudaStream_t producer = nullptr;
  FlightRecorder* recorder = nullptr;  // null: not recorded
  uint64_t number = 0;                 // in the flight record

  int64_t bytes() const;  // the larger of in and out
  // For an operation that ends when it is issued.
  void EndRecord() const;
};

const char* Name(OpKind kind);

// Returns the common name of groups with one purpose, for records and metrics: "rows" for "rows_3".
std::string KindOfGroup(const std::string& group);

// "all_reduce 'grad_bucket' 7 (group world, seq 12, 4.0 KiB fp32)"
std::string Describe(const Request& request, const std::string& group, int64_t seq);

// Compares the properties that all ranks of a group must agree on. Returns an empty string if `a`
// and `b` match, otherwise a text such as "count 4 against 5".
std::string Difference(const Request& a, const Request& b);
// Returns a 14-bit hash of the properties that Difference compares, for a message tag.
uint32_t SignatureHash(const Request& request, int64_t seq);

// "1, 2 and 5"
std::string JoinRanks(const std::vector<int>& ranks);

// Implements the interface in terms of Requests with checked arguments and a sequence number.
class RequestCommunicator : public Communicator {
 public:
  RequestCommunicator(int rank, int size, std::string name);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }

  Work AllReduce(TensorRef inout, ReduceOp op, OpTag tag, cudaStream_t producer) override;
  Work ReduceScatter(TensorRef in, TensorRef out, ReduceOp op, OpTag tag,
                     cudaStream_t producer) override;
  Work AllGather(TensorRef in, TensorRef out, OpTag tag, cudaStream_t producer) override;
  Work AllGatherV(TensorRef in, TensorRef out, std::span<const int64_t> counts, OpTag tag,
                  cudaStream_t producer) override;
  Work AllToAll(TensorRef in, TensorRef out, OpTag tag, cudaStream_t producer) override;
  Work AllToAllV(TensorRef in, TensorRef out, std::span<const int64_t> to_counts,
                 std::span<const int64_t> from_counts, OpTag tag, cudaStream_t producer) override;
  Work Broadcast(TensorRef inout, int root, OpTag tag, cudaStream_t producer) override;
  Work SendRecv(TensorRef send, int to, TensorRef recv, int from, OpTag tag,
                cudaStream_t producer) override;
  Work Barrier(OpTag tag) override;
  std::unique_ptr<Communicator> Split(int color, int key, std::string name, GroupRole role) final;

  // Records all later operations, including those of groups that are split from this one.
  // `recorder` is borrowed; null stops recording.
  void RecordIn(FlightRecorder* recorder) { recorder_ = recorder; }

 protected:
  virtual Work Issue(Request request, int64_t seq) = 0;
  virtual std::unique_ptr<RequestCommunicator> SplitGroup(int color, int key, std::string name) = 0;
  virtual Device::Kind device_kind() const { return Device::Kind::kCpu; }
  // Returns true if the transport writes into the flight record when operations become ready and
  // end. The caller of Work::WaitOn does not know it: only a stream waits.
  virtual bool records_ends() const { return false; }
  // Called once on a group that was made by SplitGroup, before its first operation.
  virtual void SetRole(GroupRole) {}

 private:
  Work CheckAndIssue(Request request);
  void Check(const Request& request) const;

  const int rank_;
  const int size_;
  const std::string name_;
  int64_t next_seq_ = 0;
  FlightRecorder* recorder_ = nullptr;
};

// `comm` must be a RequestCommunicator, as all communicators of this program are.
void RecordIn(Communicator& comm, FlightRecorder* recorder);

// The arguments of Communicator::Split on one rank of the parent. Threads and processes determine
// the members of the new groups by the same rule.
struct SplitPlace {
  int color = -1;  // negative: member of no group
  int key = 0;
  int rank = 0;  // in the parent
};

// `all` has one entry per rank, in any order. Returns the indices in `all` of a color's members,
// sorted by (key, rank), or nothing for a negative color.
std::vector<int> MembersOf(std::span<const SplitPlace> all, int color);

// Returns the index of `member` in `members`; 0 if it is not a member.
int IndexOf(std::span<const int> members, int member);

// Returns the time at which a wait that begins now must end.
//
//   const auto deadline = DeadlineIn(options.timeout_s);
//
// Infinity and any other number of seconds that the clock cannot represent become about thirty
// years, which means no deadline. `seconds` must not be NaN.
inline std::chrono::steady_clock::time_point DeadlineIn(double seconds) {
  using Clock = std::chrono::steady_clock;
  // Far below the 292 years at which 64 bits of nanoseconds overflow, because a condition variable
  // may add the time of another clock.
  constexpr double kForeverSeconds = 1e9;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(seconds, kForeverSeconds)));
}

// Returns the seconds that an operation with this deadline has waited, for the message of a
// timeout. A caller may have polled it until long after the deadline (wait_longer.h).
inline double WaitedSeconds(double timeout_s, std::chrono::steady_clock::time_point deadline) {
  const std::chrono::duration<double> late = std::chrono::steady_clock::now() - deadline;
  return std::max(timeout_s, std::floor(timeout_s + late.count()));
}

// Selects the exception to report if several threads fail: the first that is a cause. A consequence
// (kAborted) is reported only if there is no cause.
class FirstCause {
 public:
  void Add(std::exception_ptr error, bool consequence) {
    const std::lock_guard lock(mutex_);
    std::exception_ptr& kept = consequence ? consequence_ : cause_;
    if (!kept) kept = std::move(error);
  }
  void RethrowAny() const {
    if (cause_) std::rethrow_exception(cause_);
    if (consequence_) std::rethrow_exception(consequence_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr cause_, consequence_;
};

// The only sum on the CPU: pairwise over ranks, by the binary tree of core/pairwise_sum.h, element
// by element. Every CPU communicator uses it, so threads, MPI and any split into segments give the
// same bits. If 1, 2, 4, ... ranks first sum their own terms by the same tree, the result has the
// same bits as on a single rank.
//
// out[i] = ((in[0][i] op in[1][i]) op (in[2][i] op in[3][i])) op ...; `out` may be one of `in`.
// bf16 accumulates in fp32 and is rounded once, to nearest even. Integers wrap. Max and min keep a
// NaN, so that a bad rank cannot hide.
void OrderedReduce(DType dtype, ReduceOp op, std::span<const void* const> in, void* out,
                   int64_t count);

}  // namespace halflife::dist
