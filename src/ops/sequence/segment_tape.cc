#include "ops/sequence/segment_tape.h"

#include <utility>

#include "core/error.h"

namespace halflife::ops {
namespace {

class Arrived final : public SegmentGroup::Transfer {
 public:
  void Wait() override {}
};

}  // namespace

// Records a copy of the received tensor, because the reader may modify the tensor in place.
class SegmentTape::RecordedTransfer final : public Transfer {
 public:
  RecordedTransfer(std::unique_ptr<Transfer> transfer, at::Tensor received, at::Tensor& kept)
      : transfer_(std::move(transfer)), received_(std::move(received)), kept_(kept) {}
  void Wait() override {
    transfer_->Wait();
    if (received_.defined() && !kept_.defined()) kept_ = received_.clone();
  }

 private:
  std::unique_ptr<Transfer> transfer_;
  at::Tensor received_;
  at::Tensor& kept_;
};

void SegmentTape::Run(const std::function<void()>& run) {
  mode_ = recorded_ ? Mode::kReplay : Mode::kRecord;
  next_ = 0;
  run();
  HL_CHECK(!recorded_ || next_ == entries_.size(), "the second run of a segment made ", next_,
           " exchanges, the first one ", entries_.size());
  recorded_ = true;
  mode_ = Mode::kPass;
}

// A replayed run needs nothing from the other ranks.
void SegmentTape::RecordRead(int64_t num_tokens) {
  SegmentGroup::RecordRead(num_tokens);
  if (mode_ != Mode::kReplay) group_->RecordRead(num_tokens);
}

const at::Tensor& SegmentTape::Next(const char* what) {
  HL_CHECK(next_ < entries_.size() && entries_[next_].what == what,
           "the second run of a segment asks for ", what, " as exchange ", next_ + 1,
           next_ < entries_.size() ? Concat(", the first one for ", entries_[next_].what)
                                   : Concat(", the first one made ", entries_.size()));
  return entries_[next_++].result;
}

at::Tensor SegmentTape::Exchange(const char* what, const std::function<at::Tensor()>& exchange) {
  if (mode_ == Mode::kPass) return exchange();
  if (mode_ == Mode::kReplay) return Next(what).clone();
  at::Tensor result = exchange();
  entries_.push_back({what, result.clone()});
  return result;
}

at::Tensor SegmentTape::AllGather(const at::Tensor& x, const char* what) {
  return Exchange(what, [&] { return group_->AllGather(x, what); });
}

at::Tensor SegmentTape::ReduceScatter(const at::Tensor& x, const char* what) {
  return Exchange(what, [&] { return group_->ReduceScatter(x, what); });
}

std::unique_ptr<SegmentGroup::Transfer> SegmentTape::Shift(const at::Tensor& send,
                                                           const at::Tensor& received,
                                                           Direction direction, const char* what) {
  if (mode_ == Mode::kReplay) {
    const at::Tensor& kept = Next(what);
    if (received.defined()) received.copy_(kept);
    return std::make_unique<Arrived>();
  }
  std::unique_ptr<Transfer> transfer = group_->Shift(send, received, direction, what);
  if (mode_ == Mode::kPass) return transfer;
  entries_.push_back({what, {}});
  return std::make_unique<RecordedTransfer>(std::move(transfer), received, entries_.back().result);
}

}  // namespace halflife::ops
