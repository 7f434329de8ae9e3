#include "dist/local_communicator.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <limits>
#include <thread>

#include "core/log.h"
#include "core/threads.h"
#include "dist/local_state.h"
#include "dist/request.h"

namespace halflife::dist {
namespace {

using local::Clock;
using local::Group;
using local::Slot;
using local::State;

class LocalOperation final : public Operation {
 public:
  LocalOperation(State& state, std::shared_ptr<Group> group, std::shared_ptr<Slot> slot, int rank,
                 int64_t seq)
      : state_(state),
        group_(std::move(group)),
        slot_(std::move(slot)),
        rank_(rank),
        seq_(seq),
        deadline_(DeadlineIn(state.options().timeout_s)),
        exceptions_(std::uncaught_exceptions()) {}

  ~LocalOperation() override {
    try {
      if (state_.Done(*group_, *slot_)) return;
      // The buffers are destroyed with this stack frame.
      if (std::uncaught_exceptions() > exceptions_) {
        state_.Abort(CommFailure::Kind::kAborted,
                     Concat("rank ", group_->world_ranks[rank_], " failed with operations open"));
        return;
      }
      HL_WARN("dist", "an operation of group ", group_->name, " (seq ", seq_,
              ") was destroyed before it was done");
      WaitHost();
    } catch (const std::exception& error) {
      HL_WARN("dist", error.what());
    }
  }

  // Also true once the world has failed; WaitHost then throws the failure.
  bool Done() override { return state_.Done(*group_, *slot_) || state_.aborted(); }
  void WaitHost() override { state_.Wait(*group_, *slot_, rank_, seq_, deadline_); }
  void WaitOn(cudaStream_t) override { WaitHost(); }

 private:
  State& state_;
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Slot> slot_;
  const int rank_;
  const int64_t seq_;
  const Clock::time_point deadline_;
  const int exceptions_;  // exceptions in flight when the operation was issued
};

void WriteNan(const TensorRef& tensor) {
  const int64_t middle = tensor.count / 2;
  switch (tensor.dtype) {
    case DType::kF32:
      static_cast<float*>(tensor.data)[middle] = std::numeric_limits<float>::quiet_NaN();
      return;
    case DType::kF64:
      static_cast<double*>(tensor.data)[middle] = std::numeric_limits<double>::quiet_NaN();
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(tensor.data)[middle] = 0x7fc0;
      return;
    default:
      HL_FAIL(ExitCode::kInternal, "a NaN fault needs a floating-point payload, not ",
              Name(tensor.dtype));
  }
}

class LocalCommunicator final : public RequestCommunicator {
 public:
  LocalCommunicator(State& state, std::shared_ptr<Group> group, int rank)
      : RequestCommunicator(rank, static_cast<int>(group->world_ranks.size()), group->name),
        state_(state),
        group_(std::move(group)) {}

  int WorldRank(int rank) const override { return group_->world_ranks[rank]; }
  void Abort(const std::string& cause) noexcept override {
    state_.Abort(CommFailure::Kind::kAborted, cause);
  }

 private:
  std::unique_ptr<RequestCommunicator> SplitGroup(int color, int key, std::string name) override;
  Work Issue(Request request, int64_t seq) override;
  void Befall(LocalFault::Kind kind, Request& request);

  State& state_;
  const std::shared_ptr<Group> group_;
  int64_t issued_ = 0;  // ahead of the sequence numbers of the base class after a kDuplicate fault
};

Work LocalCommunicator::Issue(Request request, int64_t) {
  if (state_.options().schedule) {
    std::this_thread::sleep_for(
        std::chrono::duration<double>(state_.DelaySeconds(*group_, issued_, rank())));
  }
  const std::optional<LocalFault::Kind> fault =
      state_.TakeFault(WorldRank(rank()), request.tag.what);
  if (fault) Befall(*fault, request);
  if (fault == LocalFault::Kind::kDuplicate) {
    state_.Arrive(*group_, rank(), issued_++, request);
  }
  const int64_t seq = issued_++;
  std::shared_ptr<Slot> slot = state_.Arrive(*group_, rank(), seq, std::move(request));
  return Work(std::make_shared<LocalOperation>(state_, group_, std::move(slot), rank(), seq));
}

void LocalCommunicator::Befall(LocalFault::Kind kind, Request& request) {
  const std::string what =
      Concat("rank ", WorldRank(rank()), " at ", request.tag.what, " ", request.tag.index);
  switch (kind) {
    case LocalFault::Kind::kThrow:
      HL_FAIL(ExitCode::kInternal, "injected: ", what);
    case LocalFault::Kind::kHang:
      state_.HangUntilAbort();
      throw CommError({CommFailure::Kind::kAborted, Concat("injected hang ended: ", what)});
    case LocalFault::Kind::kDisappear:
      state_.Abort(CommFailure::Kind::kPeerLost,
                   Concat("peer lost: rank ", WorldRank(rank()), " is gone"));
      throw local::Vanished();
    case LocalFault::Kind::kNan:
      return WriteNan(request.in);
    case LocalFault::Kind::kBitFlip:
      static_cast<uint8_t*>(request.in.data)[request.in.bytes() / 2] ^= 1;
      return;
    case LocalFault::Kind::kWrongCount:
      ++request.in.count;
      ++request.out.count;
      return;
    case LocalFault::Kind::kDuplicate:
      return;
  }
}

std::unique_ptr<RequestCommunicator> LocalCommunicator::SplitGroup(int color, int key,
                                                                   std::string name) {
  const int64_t seq = issued_;  // equal on all ranks; identifies the new groups
  constexpr auto kBytes = static_cast<int64_t>(sizeof(SplitPlace));
  SplitPlace own = {.color = color, .key = key, .rank = rank()};
  std::vector<SplitPlace> all(size());
  AllGather(Ref(reinterpret_cast<uint8_t*>(&own), kBytes),
            Ref(reinterpret_cast<uint8_t*>(all.data()), kBytes * size()), {"split", 0}, nullptr)
      .WaitHost();
  if (color < 0) return nullptr;
  const std::vector<int> members = MembersOf(all, color);
  std::vector<int> world_ranks;
  for (const int member : members) world_ranks.push_back(group_->world_ranks[member]);
  return std::make_unique<LocalCommunicator>(
      state_, state_.FindGroup(*group_, seq, color, std::move(name), std::move(world_ranks)),
      IndexOf(members, rank()));
}

void RunRank(State& state, int rank, const std::function<void(Communicator&)>& rank_main,
             FirstCause& first) {
  const auto failed = [&](const char* what, bool consequence) {
    first.Add(std::current_exception(), consequence);
    state.Abort(CommFailure::Kind::kAborted, Concat("rank ", rank, " failed: ", what));
  };
  try {
    LocalCommunicator comm(state, state.world(), rank);
    rank_main(comm);
    // The peers know more; this error is used only if no peer noticed.
  } catch (const local::Vanished&) {
    first.Add(std::make_exception_ptr(CommError(
                  {CommFailure::Kind::kPeerLost, Concat("peer lost: rank ", rank, " is gone")})),
              true);
  } catch (const CommError& error) {
    failed(error.what(), error.kind() == CommFailure::Kind::kAborted);
  } catch (const std::exception& error) {
    failed(error.what(), false);
  } catch (...) {
    failed("an unknown exception", false);
  }
  state.Leave(rank);
}

}  // namespace

void LocalWorld::Run(int size, const std::function<void(Communicator&)>& rank_main,
                     const LocalOptions& options) {
  HL_CHECK(size >= 1, "a world of ", size, " ranks");
  State state(size, options);
  FirstCause first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    try {
      threads.push_back(StartThread([&, rank] { RunRank(state, rank, rank_main, first); }));
    } catch (const Error& error) {  // ranks that already run wait for this one
      first.Add(std::current_exception(), /*consequence=*/false);
      state.Abort(CommFailure::Kind::kAborted, Concat("rank ", rank, ": ", error.message()));
      for (; rank < size; ++rank) state.Leave(rank);
    }
  }
  for (std::thread& thread : threads) thread.join();
  first.RethrowAny();
  const std::string left_over = state.LeftOver();
  if (!left_over.empty()) throw CommError({CommFailure::Kind::kDesync, left_over});
}

}  // namespace halflife::dist
