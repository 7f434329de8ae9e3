#include "dist/mpi_communicator.h"

#include <exception>

#include "core/log.h"

namespace halflife::dist {
namespace {

// Time for an open operation to complete while an exception unwinds.
constexpr double kUnwindGraceS = 0.5;

class MpiOperation final : public Operation {
 public:
  MpiOperation(MpiEngine& engine, std::shared_ptr<MpiJob> job, std::string what)
      : engine_(engine),
        job_(std::move(job)),
        what_(std::move(what)),
        exceptions_(std::uncaught_exceptions()) {}

  ~MpiOperation() override {
    if (Done()) return;
    // The buffers are destroyed with this stack frame.
    if (std::uncaught_exceptions() > exceptions_) {
      engine_.Abandon(*job_, kUnwindGraceS);
      return;
    }
    HL_WARN("dist", what_, " was destroyed before it was done");
    try {
      WaitHost();
    } catch (const std::exception& error) {
      HL_WARN("dist", error.what());
    }
  }

  bool Done() override { return engine_.Done(*job_); }
  void WaitHost() override { engine_.Wait(*job_); }
  void WaitOn(cudaStream_t) override { WaitHost(); }

 private:
  MpiEngine& engine_;
  const std::shared_ptr<MpiJob> job_;
  const std::string what_;
  const int exceptions_;  // exceptions in flight when the operation was issued
};

class MpiCommunicator final : public RequestCommunicator {
 public:
  MpiCommunicator(MpiEngine& engine, MpiEngine::Group group, std::string name,
                  const MpiCommunicatorOptions& options)
      : RequestCommunicator(group.rank, group.size, std::move(name)),
        engine_(engine),
        group_(group),
        options_(options) {}

  void Abort(const std::string& cause) noexcept override { engine_.Abort(cause); }

 private:
  std::unique_ptr<RequestCommunicator> SplitGroup(int color, int key, std::string name) override {
    const MpiEngine::Group group = engine_.Split(group_.id, color, key, options_.timeout_s);
    if (color < 0) return nullptr;
    return std::make_unique<MpiCommunicator>(engine_, group, std::move(name), options_);
  }
  Work Issue(Request request, int64_t seq) override {
    std::string what = Describe(request, name(), seq);
    std::shared_ptr<MpiJob> job = engine_.Submit(
        group_.id, {.plan = MakeExchangePlan(request, rank(), size(), options_.limits),
                    .tag = SignatureHash(request, seq),
                    .what = what,
                    .timeout_s = options_.timeout_s});
    return Work(std::make_shared<MpiOperation>(engine_, std::move(job), std::move(what)));
  }

  MpiEngine& engine_;
  const MpiEngine::Group group_;
  const MpiCommunicatorOptions options_;
};

}  // namespace

std::unique_ptr<Communicator> MakeMpiCommunicator(MpiEngine& engine, MpiEngine::Group group,
                                                  std::string name,
                                                  const MpiCommunicatorOptions& options) {
  return std::make_unique<MpiCommunicator>(engine, group, std::move(name), options);
}

}  // namespace halflife::dist
