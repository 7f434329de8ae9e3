// One rank's slice of rows whose other slices lie on other ranks (sequence parallelism), and how
// these ranks talk. A kernel whose tokens have a past takes one and is then right for whole rows.
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

// The ranks that share rows, in the order of their slices. All of them call the same operations in
// the same order. `what`, a literal, names an operation in errors.
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
  // What meets a token's past says so, also where nothing has to be fetched for it; and how many
  // tokens before the segment it wants as they are (0: none, a state sums them up).
  virtual void NoteAsked(int64_t num_tokens = 0) {
    ++num_asked_;
    if (num_tokens > 0) reaches_.insert(num_tokens);
  }
  int64_t num_asked() const { return num_asked_; }
  const std::set<int64_t>& reaches() const { return reaches_; }
  // Waits on the host, with the deadline of an operation, for all that was called, what was sent
  // included: before the host blocks for what a GPU computes from it, and at the end of a pass.
  virtual void Settle() = 0;
  // Seconds the host has waited for other ranks since the last call of this function.
  virtual double TakeWaitSeconds() = 0;
  // x, of one shape and dtype on all ranks -> [size, ...].
  virtual at::Tensor AllGather(const at::Tensor& x, const char* what) = 0;
  // x [size, ...] -> [...]: the sum over ranks of their x[rank()].
  virtual at::Tensor ReduceScatter(const at::Tensor& x, const char* what) = 0;
  // `send` goes to the neighbour in that direction while `received` is filled by the other one;
  // undefined where there is nothing to send or to receive. Both are contiguous and of a shape that
  // their ends agree on. Wait is for what is received: a rank that only sends does not wait for its
  // neighbour. What it sends must not change before Settle; the group keeps it alive.
  virtual std::unique_ptr<Transfer> Shift(const at::Tensor& send, const at::Tensor& received,
                                          Direction direction, const char* what) = 0;

 private:
  int64_t num_asked_ = 0;
  std::set<int64_t> reaches_;
};

// How the states of segments travel. All give the same bits.
enum class StateStrategy : uint8_t {
  kGather,    // everybody gets every segment's summary, and folds those before its own
  kRing,      // each state goes from rank to rank
  kScan,      // the same in pieces, so that ranks fold side by side
  kCheapest,  // of these, for the bytes of each exchange
};
struct ExchangeCost;

struct RowSegment {
  std::shared_ptr<SegmentGroup> group;
  std::vector<int64_t> lengths;  // tokens of a row on each rank, by rank; may be 0
  // [B] int64: how many tokens before the segment are of its first token's document.
  at::Tensor first_position;
  at::Tensor has_start = {};  // [B] bool: whether a document starts in it; undefined: nowhere
  StateStrategy strategy = StateStrategy::kGather;
  std::shared_ptr<const ExchangeCost> cost = {};  // with kCheapest
  // Of the rank with the fewest, equal on all; 0: a GPU's, where a scan is not cut into pieces.
  int threads = 1;

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
  bool is_first() const { return rank() == 0; }
  bool is_last() const { return rank() == size() - 1; }
  // Tokens of a row on the ranks before this one.
  int64_t begin() const {
    return std::accumulate(lengths.begin(), lengths.begin() + rank(), int64_t{0});
  }
};

}  // namespace halflife::ops
