// Sequence parallelism for kernels: one rank's segment of rows that are split over several ranks,
// and the communication between these ranks. A kernel that reads earlier tokens takes a RowSegment
// and then gives the result for whole rows.
//
//   const RowSegment row = {.group = group, .lengths = {64, 64}, .first_position = positions};
//   const at::Tensor tail = TokensBefore(x, 3, row);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

namespace halflife::ops {

// The ranks that share rows, in the order of their segments. All of them must call the same
// operations in the same order. `what`, a string literal, is the name of an operation in errors.
class SegmentGroup {
 public:
  class Transfer {
   public:
    virtual ~Transfer() = default;
    virtual void Wait() = 0;
  };
  enum class Direction : uint8_t { kToNext, kToPrevious };

  virtual ~SegmentGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Records that a kernel reads earlier tokens. Every such kernel calls it, even if it needs no
  // data from other ranks. `num_tokens` is the number of tokens before the segment that it reads
  // individually; 0: none, because a state summarises them.
  virtual void RecordRead(int64_t num_tokens = 0) {
    ++num_reads_;
    if (num_tokens > 0) reaches_.insert(num_tokens);
  }
  int64_t num_reads() const { return num_reads_; }
  const std::set<int64_t>& reaches() const { return reaches_; }
  // Waits until all sends have completed; on a GPU, only the stream that wrote the sent tensors
  // waits. Call it at the end of a pass.
  virtual void Settle() = 0;
  // Returns the seconds that the host has waited for other ranks since the last call.
  virtual double TakeWaitSeconds() = 0;
  // x [...] -> [size, ...]. All ranks pass the same shape and dtype.
  virtual at::Tensor AllGather(const at::Tensor& x, const char* what) = 0;
  // x [size, ...] -> [...], the sum of x[rank()] over all ranks.
  virtual at::Tensor ReduceScatter(const at::Tensor& x, const char* what) = 0;
  // Sends `send` to the neighbour in `direction` and fills `received` from the other neighbour.
  // Either is undefined if there is nothing to send or to receive. Both must be contiguous, with a
  // shape that sender and receiver agree on. Transfer::Wait waits for `received`; a rank that only
  // sends does not wait. The group keeps `send` alive; it must not change before Settle.
  virtual std::unique_ptr<Transfer> Shift(const at::Tensor& send, const at::Tensor& received,
                                          Direction direction, const char* what) = 0;

 private:
  int64_t num_reads_ = 0;
  std::set<int64_t> reaches_;
};

// How ranks exchange the states of their segments. All strategies give the same bits (with dense
// transitions, see state_exchange.h).
enum class StateStrategy : uint8_t {
  kGather,    // all ranks gather all summaries, and each folds those before its own segment
  kRing,      // each rank receives a state, folds its segment, and sends the result on
  kScan,      // a ring in pieces, so that ranks fold concurrently
  kCheapest,  // the strategy with the lowest predicted cost for the bytes of each exchange
};
struct ExchangeCost;

struct RowSegment {
  std::shared_ptr<SegmentGroup> group;
  std::vector<int64_t> lengths;  // number of tokens of a row on each rank; may be 0
  // [B] int64: the number of tokens before the segment that belong to its first token's document.
  at::Tensor first_position;
  at::Tensor has_start = {};  // [B] bool: a document starts in the segment; undefined: in no row
  StateStrategy strategy = StateStrategy::kGather;
  std::shared_ptr<const ExchangeCost> cost = {};  // required for kCheapest
  // The smallest number of CPU threads of any rank, equal on all ranks; 0: on GPUs, where InPieces
  // does not cut a scan.
  int threads = 1;

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
  bool is_first() const { return rank() == 0; }
  bool is_last() const { return rank() == size() - 1; }
  // Returns the number of tokens of a row on the ranks before this one.
  int64_t begin() const {
    return std::accumulate(lengths.begin(), lengths.begin() + rank(), int64_t{0});
  }
};

}  // namespace halflife::ops
