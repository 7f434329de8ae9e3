#include "model/sequence_parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <deque>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "ops/torch/tensor_views.h"

namespace halflife::model {
namespace {

TensorRef RefOrNone(const at::Tensor& x) {
  return x.defined() ? ops::RefOf(x) : TensorRef{.dtype = DType::kU8};
}

cudaStream_t StreamOf(const at::Tensor& x) {
  return x.defined() && x.is_cuda() ? ops::CurrentStream(ops::RefOf(x).device) : nullptr;
}

// Returns the bytes of x. Transfers send bytes, because a rank that only sends does not know the
// type of the data that travels in the other direction.
at::Tensor Bytes(const at::Tensor& x) { return x.defined() ? ops::BytesOf(x) : x; }

// Accounts for waits, and keeps what is being sent alive.
class Waits {
 public:
  void Await(dist::Work work, cudaStream_t consumer) {
    seconds_ += dist::AwaitResult(std::move(work), consumer);
  }
  // Records a send without a matching receive. The rank continues at once, so that it does not wait
  // for ranks that it is ahead of. `tensor` is kept alive until the send has completed.
  void Keep(dist::Work work, at::Tensor tensor, cudaStream_t writer) {
    // These sends are done, so WaitHost does not block. It throws if a send failed.
    for (; !sent_.empty() && sent_.front().work.Done(); sent_.pop_front())
      sent_.front().work.WaitHost();
    sent_.push_back({.tensor = std::move(tensor), .writer = writer, .work = std::move(work)});
  }
  void Settle() {
    for (; !sent_.empty(); sent_.pop_front())
      Await(std::move(sent_.front().work), sent_.front().writer);
  }
  double TakeSeconds() { return std::exchange(seconds_, 0); }

 private:
  struct Sent {
    at::Tensor tensor;    // Undefined: this rank sent nothing, only others did.
    cudaStream_t writer;  // The stream that wrote the tensor and may write to its memory again.
    dist::Work work;      // Destroyed first.
  };
  std::deque<Sent> sent_;  // Sends that are not yet known to be complete.
  double seconds_ = 0;
};

class GivingTransfer final : public ops::SegmentGroup::Transfer {
 public:
  void Wait() override {}
};

class TakingTransfer final : public ops::SegmentGroup::Transfer {
 public:
  // `sent` is sent in the same operation in the other direction. It may be undefined.
  TakingTransfer(at::Tensor sent, dist::Work work, cudaStream_t consumer, Waits& waits)
      : sent_(std::move(sent)), work_(std::move(work)), consumer_(consumer), waits_(waits) {}
  void Wait() override {
    if (!std::exchange(waited_, true)) waits_.Await(std::move(work_), consumer_);
  }

 private:
  at::Tensor sent_;
  dist::Work work_;  // Destroyed first.
  cudaStream_t consumer_;
  Waits& waits_;
  bool waited_ = false;
};

class RankGroup final : public ops::SegmentGroup {
 public:
  explicit RankGroup(dist::Communicator& comm) : comm_(comm) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  double TakeWaitSeconds() override { return waits_.TakeSeconds(); }
  void Settle() override { waits_.Settle(); }

  at::Tensor AllGather(const at::Tensor& x, const char* what) override {
    const at::Tensor in = x.contiguous();
    std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
    sizes.insert(sizes.begin(), size());
    const at::Tensor out = at::empty(sizes, x.options());
    waits_.Await(comm_.AllGather(ops::RefOf(in), ops::RefOf(out), {what, 0}, StreamOf(x)),
                 StreamOf(x));
    return out;
  }

  at::Tensor ReduceScatter(const at::Tensor& x, const char* what) override {
    const at::Tensor in = x.contiguous(), out = at::empty(x.sizes().slice(1), x.options());
    waits_.Await(comm_.ReduceScatter(ops::RefOf(in), ops::RefOf(out), dist::ReduceOp::kSum,
                                     {what, 0}, StreamOf(x)),
                 StreamOf(x));
    return out;
  }

  std::unique_ptr<Transfer> Shift(const at::Tensor& send, const at::Tensor& received,
                                  Direction direction, const char* what) override {
    const int next = rank() + 1 < size() ? rank() + 1 : -1, previous = rank() - 1;
    const bool forward = direction == Direction::kToNext;
    const int to = forward ? next : previous, from = forward ? previous : next;
    const cudaStream_t stream = StreamOf(send.defined() ? send : received);
    HL_CHECK(!received.defined() || received.is_contiguous(), what,
             " is received into a tensor that is not contiguous");
    // Lives until it has been sent.
    const at::Tensor sent = send.defined() ? send.contiguous() : send;
    dist::Work work =
        comm_.SendRecv(RefOrNone(Bytes(sent)), sent.defined() ? to : -1, RefOrNone(Bytes(received)),
                       received.defined() ? from : -1, {what, 0}, stream);
    if (received.defined())
      return std::make_unique<TakingTransfer>(sent, std::move(work), stream, waits_);
    waits_.Keep(std::move(work), sent, stream);
    return std::make_unique<GivingTransfer>();
  }

 private:
  dist::Communicator& comm_;
  Waits waits_;
};

}  // namespace

std::shared_ptr<ops::SegmentGroup> MakeSegmentGroup(dist::Communicator& comm) {
  return std::make_shared<RankGroup>(comm);
}

std::vector<int64_t> CutRow(int64_t seq_len, int num_ranks, int64_t align) {
  if (seq_len < align * num_ranks) align = 1;
  const int64_t num_units = (seq_len + align - 1) / align;  // The last unit may be incomplete.
  std::vector<int64_t> lengths;
  int64_t begin = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int64_t units = num_units / num_ranks + (rank < num_units % num_ranks ? 1 : 0);
    const int64_t length = std::min(units * align, seq_len - begin);
    lengths.push_back(length);
    begin += length;
  }
  return lengths;
}

std::vector<int64_t> SequenceParallel::LengthsOf(int64_t seq_len) const {
  if (lengths.empty()) return CutRow(seq_len, group->size(), kAlign);
  const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  HL_CHECK(lengths.size() == static_cast<size_t>(group->size()) && sum == seq_len,
           "the slices have ", sum, " tokens on ", lengths.size(), " ranks, but rows have ",
           seq_len, " tokens and the number of ranks is ", group->size());
  return lengths;
}

SequenceSlice SequenceParallel::SliceOf(const SequenceSlice& whole) const {
  ops::RowSegment row = {.group = group,
                         .lengths = LengthsOf(whole.seq_len),
                         .first_position = {},
                         .has_start = {},
                         .strategy = strategy,
                         .cost = cost,
                         .threads = threads};
  const int64_t begin = row.begin(), length = row.lengths[row.rank()];
  SequenceSlice slice = whole.Narrow(begin, length);
  row.first_position = length > 0 ? slice.positions.select(1, 0).contiguous()
                                  : at::zeros({whole.batch}, whole.positions.options());
  if (slice.has_boundaries()) row.has_start = slice.starts.any(1);
  slice.segment = std::make_shared<const ops::RowSegment>(std::move(row));
  return slice;
}

at::Tensor SequenceParallel::TokensOf(const at::Tensor& x) const {
  const std::vector<int64_t> of_ranks = LengthsOf(x.size(1));
  const auto rank = static_cast<size_t>(group->rank());
  const int64_t begin =
      std::accumulate(of_ranks.begin(), of_ranks.begin() + group->rank(), int64_t{0});
  return x.narrow(1, begin, of_ranks[rank]).contiguous();
}

}  // namespace halflife::model
