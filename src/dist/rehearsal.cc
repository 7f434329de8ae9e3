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
  bool noted_ = false;  // the streams' wait and then the host's are one
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
    // Of many ranks it is more than a machine has. Memory of that size comes fresh from the system,
    // as zeros that take none until they are written.
    constexpr int64_t kFresh = 64 << 20;
    if (request.out.data != nullptr && request.out.bytes() < kFresh)
      std::memset(request.out.data, 0, static_cast<size_t>(request.out.bytes()));
    return Work(std::make_shared<RehearsedWork>(rehearsal_, operation));
  }
  std::unique_ptr<RequestCommunicator> SplitGroup(int, int, std::string name) override {
    HL_FAIL(ExitCode::kInternal, "a rehearsed group does not know the ranks that would be in '",
            name, "'; MakeGroup makes it");
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
