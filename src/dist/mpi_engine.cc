#include "dist/mpi_engine.h"

#include <mpi.h>

#include <numeric>

#include "core/log.h"
#include "dist/deadline.h"
#include "dist/mpi_loop.h"

namespace halflife::dist {

using mpi::GroupState;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kEngineGrace = std::chrono::seconds(5);

std::vector<int> WorldRanksOf(MPI_Comm group, int size) {
  MPI_Group own = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  HL_MPI(MPI_Comm_group(group, &own));
  HL_MPI(MPI_Comm_group(MPI_COMM_WORLD, &world));
  std::vector<int> ranks(size), of_world(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  HL_MPI(MPI_Group_translate_ranks(own, size, ranks.data(), world, of_world.data()));
  HL_MPI(MPI_Group_free(&own));
  HL_MPI(MPI_Group_free(&world));
  return of_world;
}

}  // namespace

MpiEngine::Loop::Loop() {
  auto world = std::make_unique<GroupState>();
  HL_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &world->comm));
  HL_MPI(MPI_Comm_set_errhandler(world->comm, MPI_ERRORS_RETURN));
  HL_MPI(MPI_Comm_rank(world->comm, &world->rank));
  HL_MPI(MPI_Comm_size(world->comm, &world->size));
  world->world_ranks = WorldRanksOf(world->comm, world->size);
  groups_.push_back(std::move(world));
  thread_ = std::thread([this] { Run(); });
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
  return {id, groups_[id]->rank, groups_[id]->size};
}

MpiEngine::Group MpiEngine::Loop::AddGroup(GroupId parent, double timeout_s,
                                           std::function<MPI_Comm(MPI_Comm)> split) {
  const auto made = std::make_shared<Group>();  // outlives a caller that gave up
  MpiJobSpec spec;
  spec.what = "split of a group";
  spec.timeout_s = timeout_s;
  const std::shared_ptr<MpiJob> job = Submit(parent, std::move(spec), [=, this] {
    auto group = std::make_unique<GroupState>();
    group->comm = split(groups_[parent]->comm);
    if (group->comm != MPI_COMM_NULL) {
      HL_MPI(MPI_Comm_set_errhandler(group->comm, MPI_ERRORS_RETURN));
      HL_MPI(MPI_Comm_rank(group->comm, &group->rank));
      HL_MPI(MPI_Comm_size(group->comm, &group->size));
      group->world_ranks = WorldRanksOf(group->comm, group->size);
    }
    const std::lock_guard lock(mutex_);
    *made = {static_cast<GroupId>(groups_.size()), group->rank, group->size};
    groups_.push_back(std::move(group));
  });
  Wait(*job);
  return *made;
}

std::shared_ptr<MpiJob> MpiEngine::Loop::Submit(GroupId group, MpiJobSpec spec,
                                                std::function<void()> call) {
  auto job = std::make_shared<MpiJob>();
  job->group = group;
  job->spec = std::move(spec);
  job->call = std::move(call);
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
  return finished_.wait_until(lock, when, [&] { return job.state != MpiJob::State::kPending; });
}

void MpiEngine::Loop::Wait(MpiJob& job) {
  std::unique_lock lock(mutex_);
  if (!AwaitUntil(lock, job, job.deadline)) {
    const CommFailure timeout = {
        CommFailure::Kind::kTimeout,
        Concat("timeout: ", job.spec.what, " has waited ", job.spec.timeout_s, " s")};
    if (!kill_) {
      kill_ = timeout;
      kill_culprit_ = &job;
    }
    submitted_.notify_one();
    // The engine knows whom it waits for; unless it is itself stuck in a blocking MPI call.
    if (!AwaitUntil(lock, job, Clock::now() + kEngineGrace)) throw CommError(timeout);
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

MpiEngine::MpiEngine() : loop_(std::make_unique<Loop>()) {}
MpiEngine::~MpiEngine() {
  if (!loop_->Stop()) {
    HL_WARN("dist", "the MPI thread is stuck in a blocking call; leaving it behind");
    static_cast<void>(loop_.release());
  }
}
MpiEngine::Group MpiEngine::world() { return loop_->world(); }

MpiEngine::Group MpiEngine::Split(GroupId group, int color, int key, double timeout_s) {
  return loop_->AddGroup(group, timeout_s, [=](MPI_Comm parent) {
    MPI_Comm made = MPI_COMM_NULL;
    HL_MPI(MPI_Comm_split(parent, color < 0 ? MPI_UNDEFINED : color, key, &made));
    return made;
  });
}

MpiEngine::Group MpiEngine::SplitByNode(GroupId group, double timeout_s) {
  return loop_->AddGroup(group, timeout_s, [](MPI_Comm parent) {
    MPI_Comm made = MPI_COMM_NULL;
    HL_MPI(MPI_Comm_split_type(parent, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &made));
    return made;
  });
}

std::shared_ptr<MpiJob> MpiEngine::Submit(GroupId group, MpiJobSpec spec) {
  return loop_->Submit(group, std::move(spec), nullptr);
}
bool MpiEngine::Done(const MpiJob& job) { return job.state != MpiJob::State::kPending; }
void MpiEngine::Wait(MpiJob& job) { loop_->Wait(job); }
void MpiEngine::Abandon(MpiJob& job, double grace_s) noexcept { loop_->Abandon(job, grace_s); }
void MpiEngine::Abort(const std::string& cause) noexcept { loop_->Abort(cause); }
bool MpiEngine::healthy() { return loop_->healthy(); }

}  // namespace halflife::dist
