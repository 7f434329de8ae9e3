// Activation recomputation for segments: runs a computation twice, but communicates only once. The
// first run records the results of its exchanges. The second run, which backward makes instead of
// keeping the activations of the first, reads them from the tape. The backward of the second run
// communicates normally.
//
//   const auto tape = std::make_shared<SegmentTape>(row.group);
//   row.group = tape;
//   tape->Run([&] { Forward(x, row); });       // recorded
//   tape->Run([&] { y = Forward(x, row); });   // the same without a message
//   y.backward();                              // with messages of its own
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "ops/sequence/row_segment.h"

namespace halflife::ops {

class SegmentTape final : public SegmentGroup {
 public:
  explicit SegmentTape(std::shared_ptr<SegmentGroup> group) : group_(std::move(group)) {}

  // Records the first run, and replays its results in later ones. Throws an Error if a later run
  // calls other exchanges, or calls them in another order.
  void Run(const std::function<void()>& run);

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void RecordRead(int64_t num_tokens = 0) override;
  void Settle() override { group_->Settle(); }
  double TakeWaitSeconds() override { return group_->TakeWaitSeconds(); }
  at::Tensor AllGather(const at::Tensor& x, const char* what) override;
  at::Tensor ReduceScatter(const at::Tensor& x, const char* what) override;
  std::unique_ptr<Transfer> Shift(const at::Tensor& send, const at::Tensor& received,
                                  Direction direction, const char* what) override;

 private:
  enum class Mode : uint8_t { kRecord, kReplay, kPass };
  struct Entry {
    std::string what;
    at::Tensor result;  // undefined: this rank received nothing
  };
  class RecordedTransfer;

  at::Tensor Exchange(const char* what, const std::function<at::Tensor()>& exchange);
  const at::Tensor& Next(const char* what);

  std::shared_ptr<SegmentGroup> group_;
  Mode mode_ = Mode::kPass;
  bool recorded_ = false;
  std::deque<Entry> entries_;  // a deque, because transfers keep references to their entries
  size_t next_ = 0;            // the next entry to replay
};

}  // namespace halflife::ops
