#include "dist/request.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/hash.h"
#include "core/human.h"
#include "dist/flight_recorder.h"

namespace halflife::dist {
namespace {

const char* Name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "max", "min"};
  return kNames[static_cast<int>(op)];
}

// Returns the element count that must be equal on all ranks; 0 if ranks may differ.
int64_t SharedCount(const Request& request) {
  switch (request.kind) {
    case OpKind::kAllToAllV:
    case OpKind::kSendRecv:
    case OpKind::kBarrier:
      return 0;
    case OpKind::kReduceScatter:
      return request.in.count;
    default:
      return request.out.count;
  }
}

// Notifies the recorder when the caller has observed the end of the operation. With
// `transport_records`, WaitOn is no such observation: it returns at once, and a stream waits.
class RecordedOperation final : public Operation {
 public:
  RecordedOperation(Work work, FlightRecorder& recorder, uint64_t number, bool transport_records)
      : work_(std::move(work)),
        recorder_(recorder),
        number_(number),
        transport_records_(transport_records) {}

  bool Done() override {
    return Seen([this] { return work_.Done(); });
  }
  void WaitHost() override {
    Seen([this] { return work_.WaitHost(), true; });
  }
  void WaitOn(cudaStream_t consumer) override {
    Seen([&] { return work_.WaitOn(consumer), !transport_records_; });
  }

 private:
  template <typename Wait>
  bool Seen(Wait wait) {
    try {
      const bool done = wait();
      if (done) End(OpState::kDone);
      return done;
    } catch (...) {
      End(OpState::kFailed);
      throw;
    }
  }
  void End(OpState state) {
    if (!std::exchange(ended_, true)) recorder_.End(number_, state);
  }

  Work work_;
  FlightRecorder& recorder_;
  const uint64_t number_;
  const bool transport_records_;
  bool ended_ = false;
};

}  // namespace

int64_t Request::bytes() const { return static_cast<int64_t>(std::max(in.bytes(), out.bytes())); }

void Request::EndRecord() const {
  if (recorder != nullptr) recorder->End(number, OpState::kDone);
}

const char* Name(OpKind kind) {
  constexpr const char* kNames[] = {"all_reduce",   "reduce_scatter", "all_gather",
                                    "all_gather_v", "all_to_all",     "broadcast",
                                    "send_recv",    "barrier",        "all_to_all_v"};
  return kNames[static_cast<int>(kind)];
}

std::string KindOfGroup(const std::string& group) { return group.substr(0, group.find('_')); }

std::string Describe(const Request& request, const std::string& group, int64_t seq) {
  const std::string payload =
      request.kind == OpKind::kBarrier
          ? ""
          : Concat(", ", HumanBytes(request.bytes()), " ", Name(request.in.dtype));
  return Concat(Name(request.kind), " '", request.tag.what, "' ", request.tag.index, " (group ",
                group, ", seq ", seq, payload, ")");
}

std::string Difference(const Request& a, const Request& b) {
  const auto pair = [](const char* what, const auto& x, const auto& y) {
    return Concat(what, x, " against ", y);
  };
  if (a.kind != b.kind) return pair("", Name(a.kind), Name(b.kind));
  if (std::strcmp(a.tag.what, b.tag.what) != 0 || a.tag.index != b.tag.index) {
    return Concat("tag '", a.tag.what, "' ", a.tag.index, " against '", b.tag.what, "' ",
                  b.tag.index);
  }
  if (SharedCount(a) != SharedCount(b)) return pair("count ", SharedCount(a), SharedCount(b));
  if (a.in.dtype != b.in.dtype) return pair("dtype ", Name(a.in.dtype), Name(b.in.dtype));
  if (a.reduce != b.reduce) return pair("reduction ", Name(a.reduce), Name(b.reduce));
  if (a.root != b.root) return pair("root ", a.root, b.root);
  if (a.kind == OpKind::kAllGatherV && a.counts != b.counts) return "different counts per rank";
  return "";
}

uint32_t SignatureHash(const Request& request, int64_t seq) {
  const std::string text =
      Concat(seq, ' ', Name(request.kind), ' ', request.tag.what, ' ', request.tag.index, ' ',
             SharedCount(request), ' ', Name(request.in.dtype), ' ', Name(request.reduce), ' ',
             request.root);
  return static_cast<uint32_t>(HashBytes(text).lo & 0x3fff);
}

std::string JoinRanks(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

RequestCommunicator::RequestCommunicator(int rank, int size, std::string name)
    : rank_(rank), size_(size), name_(std::move(name)) {
  HL_CHECK(0 <= rank && rank < size, "group ", name_, ": rank ", rank, " of ", size);
}

Work RequestCommunicator::AllReduce(TensorRef inout, ReduceOp op, OpTag tag,
                                    cudaStream_t producer) {
  return CheckAndIssue({.kind = OpKind::kAllReduce,
                        .tag = tag,
                        .in = inout,
                        .out = inout,
                        .reduce = op,
                        .producer = producer});
}

Work RequestCommunicator::ReduceScatter(TensorRef in, TensorRef out, ReduceOp op, OpTag tag,
                                        cudaStream_t producer) {
  return CheckAndIssue({.kind = OpKind::kReduceScatter,
                        .tag = tag,
                        .in = in,
                        .out = out,
                        .reduce = op,
                        .producer = producer});
}

Work RequestCommunicator::AllGather(TensorRef in, TensorRef out, OpTag tag, cudaStream_t producer) {
  return CheckAndIssue(
      {.kind = OpKind::kAllGather, .tag = tag, .in = in, .out = out, .producer = producer});
}

Work RequestCommunicator::AllGatherV(TensorRef in, TensorRef out, std::span<const int64_t> counts,
                                     OpTag tag, cudaStream_t producer) {
  return CheckAndIssue({.kind = OpKind::kAllGatherV,
                        .tag = tag,
                        .in = in,
                        .out = out,
                        .counts = {counts.begin(), counts.end()},
                        .producer = producer});
}

Work RequestCommunicator::AllToAll(TensorRef in, TensorRef out, OpTag tag, cudaStream_t producer) {
  return CheckAndIssue(
      {.kind = OpKind::kAllToAll, .tag = tag, .in = in, .out = out, .producer = producer});
}

Work RequestCommunicator::AllToAllV(TensorRef in, TensorRef out, std::span<const int64_t> to_counts,
                                    std::span<const int64_t> from_counts, OpTag tag,
                                    cudaStream_t producer) {
  return CheckAndIssue({.kind = OpKind::kAllToAllV,
                        .tag = tag,
                        .in = in,
                        .out = out,
                        .counts = {to_counts.begin(), to_counts.end()},
                        .from_counts = {from_counts.begin(), from_counts.end()},
                        .producer = producer});
}

Work RequestCommunicator::Broadcast(TensorRef inout, int root, OpTag tag, cudaStream_t producer) {
  return CheckAndIssue({.kind = OpKind::kBroadcast,
                        .tag = tag,
                        .in = inout,
                        .out = inout,
                        .root = root,
                        .producer = producer});
}

Work RequestCommunicator::SendRecv(TensorRef send, int to, TensorRef recv, int from, OpTag tag,
                                   cudaStream_t producer) {
  return CheckAndIssue({.kind = OpKind::kSendRecv,
                        .tag = tag,
                        .in = send,
                        .out = recv,
                        .to = to,
                        .from = from,
                        .producer = producer});
}

Work RequestCommunicator::Barrier(OpTag tag) {
  return CheckAndIssue({.kind = OpKind::kBarrier, .tag = tag});
}

Work RequestCommunicator::CheckAndIssue(Request request) {
  Check(request);
  const int64_t seq = next_seq_++;
  if (recorder_ == nullptr) return Issue(std::move(request), seq);
  const uint64_t number = recorder_->Begin(name_, size_, request, seq, records_ends());
  request.recorder = recorder_;
  request.number = number;
  try {
    return Work(std::make_shared<RecordedOperation>(Issue(std::move(request), seq), *recorder_,
                                                    number, records_ends()));
  } catch (...) {
    recorder_->End(number, OpState::kFailed);
    throw;
  }
}

std::unique_ptr<Communicator> RequestCommunicator::Split(int color, int key, std::string name,
                                                         GroupRole role) {
  std::unique_ptr<RequestCommunicator> made = SplitGroup(color, key, std::move(name));
  if (made == nullptr) return nullptr;
  made->RecordIn(recorder_);
  made->SetRole(role);
  return made;
}

void RecordIn(Communicator& comm, FlightRecorder* recorder) {
  auto* const known = dynamic_cast<RequestCommunicator*>(&comm);
  HL_CHECK(known != nullptr, "group ", comm.name(), " keeps no flight record");
  known->RecordIn(recorder);
}

void RequestCommunicator::Check(const Request& request) const {
  const TensorRef& in = request.in;
  const TensorRef& out = request.out;
  const auto what = [&] { return Describe(request, name_, next_seq_) + ": "; };
  for (const TensorRef& tensor : {in, out}) {
    HL_CHECK(tensor.count >= 0, what(), "negative count ", tensor.count);
    HL_CHECK(tensor.count == 0 || tensor.device.kind == device_kind(), what(),
             "the tensor is on the wrong device; this group moves ",
             device_kind() == Device::Kind::kCuda ? "CUDA" : "CPU", " tensors");
  }
  HL_CHECK(in.dtype == out.dtype || request.kind == OpKind::kSendRecv, what(), "dtypes ",
           Name(in.dtype), " and ", Name(out.dtype), " differ");
  switch (request.kind) {
    case OpKind::kReduceScatter:
      HL_CHECK(in.count == size_ * out.count, what(), "in has ", in.count, " elements, not ", size_,
               " x ", out.count);
      break;
    case OpKind::kAllGather:
      HL_CHECK(out.count == size_ * in.count, what(), "out has ", out.count, " elements, not ",
               size_, " x ", in.count);
      break;
    case OpKind::kAllGatherV: {
      HL_CHECK(static_cast<int>(request.counts.size()) == size_, what(), request.counts.size(),
               " counts for ", size_, " ranks");
      const int64_t total =
          std::accumulate(request.counts.begin(), request.counts.end(), int64_t{});
      HL_CHECK(in.count == request.counts[rank_] && out.count == total, what(), "in has ", in.count,
               " and out ", out.count, " elements; the counts say ", request.counts[rank_], " and ",
               total);
      break;
    }
    case OpKind::kAllToAll:
      HL_CHECK(in.count == out.count && in.count % size_ == 0, what(), "in has ", in.count,
               " and out ", out.count, " elements; both must be the same multiple of ", size_);
      break;
    case OpKind::kAllToAllV: {
      const auto total = [](const std::vector<int64_t>& counts) {
        return std::accumulate(counts.begin(), counts.end(), int64_t{});
      };
      HL_CHECK(std::ssize(request.counts) == size_ && std::ssize(request.from_counts) == size_,
               what(), request.counts.size(), " and ", request.from_counts.size(), " counts for ",
               size_, " ranks");
      HL_CHECK(in.count == total(request.counts) && out.count == total(request.from_counts), what(),
               "in has ", in.count, " and out ", out.count, " elements; the counts say ",
               total(request.counts), " and ", total(request.from_counts));
      HL_CHECK(request.counts[rank_] == request.from_counts[rank_], what(), "this rank sends ",
               request.counts[rank_], " elements to itself and expects ",
               request.from_counts[rank_]);
      break;
    }
    case OpKind::kBroadcast:
      HL_CHECK(0 <= request.root && request.root < size_, what(), "root ", request.root, " of ",
               size_);
      break;
    case OpKind::kSendRecv:
      HL_CHECK(-1 <= request.to && request.to < size_ && -1 <= request.from && request.from < size_,
               what(), "to ", request.to, " and from ", request.from, " must lie in [-1, ", size_,
               ")");
      break;
    case OpKind::kAllReduce:
    case OpKind::kBarrier:
      break;
  }
}

std::vector<int> MembersOf(std::span<const SplitPlace> all, int color) {
  std::vector<int> members;
  if (color < 0) return members;
  for (int i = 0; i < static_cast<int>(all.size()); ++i) {
    if (all[i].color == color) members.push_back(i);
  }
  std::ranges::sort(members, {}, [&](int i) { return std::tuple(all[i].key, all[i].rank); });
  return members;
}

int IndexOf(std::span<const int> members, int member) {
  const auto at = std::ranges::find(members, member);
  return at == members.end() ? 0 : static_cast<int>(at - members.begin());
}

}  // namespace halflife::dist
