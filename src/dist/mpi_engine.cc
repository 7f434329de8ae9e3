#include "dist/mpi_engine.h"

#include <mpi.h>

#include <exception>
#include <numeric>

#include "core/log.h"
#include "core/threads.h"
#include "dist/mpi_loop.h"
#include "dist/request.h"

namespace halflife::dist {

using mpi::GroupState;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kEngineGrace = std::chrono::seconds(5);

// Returns the value of every process of `comm`, by its rank in `comm`.
std::vector<int> GatherFromAll(MPI_Comm comm, int value) {
  int size = 0;
  HL_MPI(MPI_Comm_size(comm, &size));
  std::vector<int> values(size);
  HL_MPI(MPI_Allgather(&value, 1, MPI_INT, values.data(), 1, MPI_INT, comm));
  return values;
}

MPI_Comm CopyOf(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  HL_MPI(MPI_Comm_dup(comm, &copy));
  HL_MPI(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN));
  return copy;
}

}  // namespace

mpi::Channels::Channels(MPI_Comm processes, int num_ranks) : num_ranks_(num_ranks) {
  for (int pair = 0; pair < num_ranks * num_ranks; ++pair) comms_.push_back(CopyOf(processes));
}

MpiEngine::Loop::Loop(int num_ranks) : processes_(CopyOf(MPI_COMM_WORLD)), asked_(num_ranks) {
  FindPlaces(num_ranks);
  FindNode(num_ranks);
  int process = 0;
  HL_MPI(MPI_Comm_rank(processes_, &process));
  const auto channels = std::make_shared<const mpi::Channels>(processes_, max_ranks_);
  std::vector<int> everybody(places_.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  for (int rank = 0; rank < static_cast<int>(places_.size()); ++rank) {
    if (places_[rank].process != process) continue;
    auto world = std::make_unique<GroupState>();
    world->channels = channels;
    world->rank = rank;
    world->world_ranks = everybody;
    world->rank_in_process = places_[rank].rank_in_process;
    groups_.push_back(std::move(world));
  }
  thread_ = StartThread([this] { Run(); });
}

void MpiEngine::Loop::FindPlaces(int num_ranks) {
  const std::vector<int> of_processes = GatherFromAll(processes_, num_ranks);
  num_processes_ = static_cast<int>(of_processes.size());
  max_ranks_ = std::ranges::max(of_processes);
  for (int process = 0; process < num_processes_; ++process) {
    for (int rank = 0; rank < of_processes[process]; ++rank) places_.push_back({process, rank});
  }
}

void MpiEngine::Loop::FindNode(int num_ranks) {
  MPI_Comm host = MPI_COMM_NULL;
  HL_MPI(MPI_Comm_split_type(processes_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
  HL_MPI(MPI_Comm_set_errhandler(host, MPI_ERRORS_RETURN));
  const std::vector<int> of_processes = GatherFromAll(host, num_ranks);
  int process = 0;
  HL_MPI(MPI_Comm_rank(host, &process));
  HL_MPI(MPI_Comm_free(&host));
  const auto own = of_processes.begin() + process;
  node_ = {.first_rank = std::accumulate(of_processes.begin(), own, 0),
           .size = std::accumulate(of_processes.begin(), of_processes.end(), 0)};
}

bool MpiEngine::Loop::Stop() {
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    submitted_.notify_all();
    if (!finished_.wait_for(lock, kEngineGrace, [&] { return ended_; })) {
      thread_.detach();
      return false;
    }
  }
  thread_.join();
  return true;
}

MpiEngine::Group MpiEngine::Loop::Describe(GroupId id) {
  const std::lock_guard lock(mutex_);
  const std::vector<int>& world_ranks = groups_[id]->world_ranks;
  return {id, groups_[id]->rank, static_cast<int>(world_ranks.size()), world_ranks};
}

MpiEngine::Group MpiEngine::Loop::Split(GroupId parent, int color, int key, double timeout_s) {
  const Group from = Describe(parent);
  HL_CHECK(from.size == static_cast<int>(places_.size()), "cannot split a group of ", from.size,
           " of ", places_.size(), " ranks. Split a group of all ranks.");
  MpiJobSpec spec;
  spec.what = "split of a group";
  spec.timeout_s = timeout_s;
  const std::shared_ptr<MpiJob> job =
      Submit(parent, std::move(spec), SplitPlace{.color = color, .key = key, .rank = from.rank});
  Wait(*job);
  return job->made;
}

std::shared_ptr<MpiJob> MpiEngine::Loop::Submit(GroupId group, MpiJobSpec spec,
                                                std::optional<SplitPlace> split) {
  auto job = std::make_shared<MpiJob>();
  job->group = group;
  job->spec = std::move(spec);
  job->split = split;
  job->deadline = DeadlineIn(job->spec.timeout_s);
  {
    const std::lock_guard lock(mutex_);
    if (dead_) {
      throw CommError(
          {CommFailure::Kind::kAborted, Concat(job->spec.what, ": stopped because ", dead_->text)});
    }
    submissions_.push_back(job);
  }
  submitted_.notify_one();
  return job;
}

bool MpiEngine::Loop::AwaitUntil(std::unique_lock<std::mutex>& lock, const MpiJob& job,
                                 Clock::time_point when) {
  const auto done = [&] { return job.state != MpiJob::State::kPending; };
  if (done()) return true;
  ++num_waiting_;
  begins_to_wait_ = true;
  submitted_.notify_one();
  const bool in_time = finished_.wait_until(lock, when, done);
  --num_waiting_;
  return in_time;
}

void MpiEngine::Loop::Wait(MpiJob& job) {
  std::unique_lock lock(mutex_);
  if (!AwaitUntil(lock, job, job.deadline)) {
    const CommFailure timeout = {CommFailure::Kind::kTimeout,
                                 Concat("timeout: ", job.spec.what, " has waited ",
                                        WaitedSeconds(job.spec.timeout_s, job.deadline), " s")};
    if (!kill_) {
      kill_ = timeout;
      kill_culprit_ = job.shared_from_this();
    }
    submitted_.notify_one();
    // The engine can name the ranks that it waits for, unless it is itself stuck in a blocking MPI
    // call.
    if (!AwaitUntil(lock, job, Clock::now() + kEngineGrace)) throw CommError(timeout);
    ForgiveWhatIsDone();  // before a caller sees an engine that dies of this job
  }
  if (job.state == MpiJob::State::kFailed) throw CommError(job.failure);
}

void MpiEngine::Loop::Abandon(MpiJob& job, double grace_s) noexcept {
  try {
    std::unique_lock lock(mutex_);
    if (AwaitUntil(lock, job, DeadlineIn(grace_s))) return;
    if (!kill_) {
      kill_ = {CommFailure::Kind::kAborted,
               Concat(job.spec.what, " was abandoned by an exception")};
    }
    submitted_.notify_one();
    AwaitUntil(lock, job, Clock::now() + kEngineGrace);
  } catch (const std::exception& error) {
    HL_WARN("dist", "abandoning a collective: ", error.what());
  }
}

void MpiEngine::Loop::Abort(const std::string& cause) noexcept {
  const std::lock_guard lock(mutex_);
  if (!kill_) kill_ = {CommFailure::Kind::kAborted, cause};
  submitted_.notify_one();
}

bool MpiEngine::Loop::healthy() {
  const std::lock_guard lock(mutex_);
  return !dead_ && !kill_;
}

MpiEngine::MpiEngine(int num_ranks) : loop_(std::make_unique<Loop>(num_ranks)) {}
MpiEngine::~MpiEngine() {
  if (!loop_->Stop()) {
    HL_WARN("dist", "the MPI thread is stuck in a blocking call; it is not joined");
    static_cast<void>(loop_.release());
  }
}
MpiEngine::Group MpiEngine::world(int rank_in_process) { return loop_->Describe(rank_in_process); }
int MpiEngine::num_processes() const { return loop_->num_processes(); }
MpiEngine::Node MpiEngine::node() const { return loop_->node(); }
MpiEngine::Group MpiEngine::Split(GroupId group, int color, int key, double timeout_s) {
  return loop_->Split(group, color, key, timeout_s);
}

std::shared_ptr<MpiJob> MpiEngine::Submit(GroupId group, MpiJobSpec spec) {
  return loop_->Submit(group, std::move(spec));
}
bool MpiEngine::Done(const MpiJob& job) { return job.state != MpiJob::State::kPending; }
void MpiEngine::Wait(MpiJob& job) { loop_->Wait(job); }
void MpiEngine::Abandon(MpiJob& job, double grace_s) noexcept { loop_->Abandon(job, grace_s); }
void MpiEngine::Abort(const std::string& cause) noexcept { loop_->Abort(cause); }
bool MpiEngine::healthy() { return loop_->healthy(); }

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

  int WorldRank(int rank) const override { return group_.world_ranks[static_cast<size_t>(rank)]; }
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
