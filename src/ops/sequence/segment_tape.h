// Lets a computation over a segment run twice though its ranks talk once: the results of the first
// run's exchanges are kept and given to the second one, which backward makes in place of keeping
// what the first computed. What follows the second run, its backward, reaches the other ranks.
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

  // The first run is recorded. Later ones must ask for the same in the same order, and are given
  // what was recorded: Error where they do not.
  void Run(const std::function<void()>& run);

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void NoteAsked(int64_t num_tokens = 0) override;
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
    at::Tensor result;  // undefined: of an operation that gave this rank nothing
  };
  class RecordedTransfer;

  at::Tensor Exchange(const char* what, const std::function<at::Tensor()>& exchange);
  const at::Tensor& Next(const char* what);

  std::shared_ptr<SegmentGroup> group_;
  Mode mode_ = Mode::kPass;
  bool recorded_ = false;
  std::deque<Entry> entries_;  // addresses stay: transfers fill theirs when they are waited for
  size_t next_ = 0;            // to be given out
};

}  // namespace halflife::ops
