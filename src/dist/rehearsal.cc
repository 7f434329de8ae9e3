#include "dist/rehearsal.h"

#include <cstring>
#include <utility>

namespace halflife::dist {
namespace {

class RehearsedWork final : public Operation {
 public:
  RehearsedWork(Rehearsal& rehearsal, int64_t operation)
      : rehearsal_(rehearsal), operation_(operation) {}
  bool Done() override { return true; }
  void WaitHost() override { Note(); }
  void WaitOn(cudaStream_t) override { Note(); }

 private:
  void Note() {
    if (!std::exchange(noted_, true)) rehearsal_.Wait(operation_);
  }

  Rehearsal& rehearsal_;
  const int64_t operation_;
  bool noted_ = false;  // WaitOn followed by WaitHost counts as one wait
};

class RehearsalCommunicator final : public RequestCommunicator {
 public:
  RehearsalCommunicator(Rehearsal& rehearsal, int rank, int size, std::string name)
      : RequestCommunicator(rank, size, std::move(name)), rehearsal_(rehearsal) {}
  void Abort(const std::string&) noexcept override {}

 private:
  Work Issue(Request request, int64_t) override {
    const int64_t operation = rehearsal_.Issue({.group = name(),
                                                .group_size = size(),
                                                .kind = request.kind,
                                                .what = request.tag.what,
                                                .bytes = request.bytes()});
    // The output of many ranks can exceed the machine's memory. Allocations of at least kFresh
    // bytes come directly from the system as zeros, and use no memory until they are written.
    constexpr int64_t kFresh = 64 << 20;
    if (request.out.data != nullptr && request.out.bytes() < kFresh)
      std::memset(request.out.data, 0, static_cast<size_t>(request.out.bytes()));
    return Work(std::make_shared<RehearsedWork>(rehearsal_, operation));
  }
  std::unique_ptr<RequestCommunicator> SplitGroup(int, int, std::string name) override {
    HL_FAIL(ExitCode::kInternal, "a rehearsed group does not know the ranks that would be in '",
            name, "'. Use MakeGroup.");
  }

  Rehearsal& rehearsal_;
};

}  // namespace

std::unique_ptr<Communicator> Rehearsal::MakeGroup(int rank, int size, std::string name) {
  return std::make_unique<RehearsalCommunicator>(*this, rank, size, std::move(name));
}

int64_t Rehearsal::Issue(RehearsedOperation operation) {
  const auto index = static_cast<int64_t>(operations_.size());
  operations_.push_back(std::move(operation));
  events_.push_back({RehearsedEvent::Kind::kIssue, index});
  return index;
}

}  // namespace halflife::dist
