#include <mpi.h>
// mpi.h completes the types of mpi_loop.h and must come first.
#include "dist/mpi_loop.h"

#include <set>

namespace halflife::dist {

using mpi::ActiveJob;
using mpi::Channels;
using mpi::GroupState;
using mpi::kLanes;
using mpi::Lane;
using mpi::OpenMessage;
using mpi::Place;

namespace {

constexpr auto kPollInterval = std::chrono::microseconds(50);
constexpr auto kLongestPollInterval = std::chrono::milliseconds(1);
constexpr int kEagerPolls = 20;  // polls without sleep after the last progress

}  // namespace

// Each poll takes the processor from a rank that computes. The interval is therefore a quarter of
// the time since the last progress, within [kPollInterval, kLongestPollInterval], and a completed
// message is detected at most a quarter later than it took. A rank that waits leaves its processor
// to the polls, so they are then frequent.
std::chrono::nanoseconds MpiEngine::Loop::PollInterval() const {
  if (num_waiting_ > 0) return kPollInterval;
  return std::clamp<std::chrono::nanoseconds>((std::chrono::steady_clock::now() - moved_) / 4,
                                              kPollInterval, kLongestPollInterval);
}

void MpiEngine::Loop::Run() {
  int idle_polls = 0;
  while (TakeSubmissions(idle_polls)) {
    try {
      for (const auto& group : groups_) StartJobs(*group);
      while (requests_.empty() && AllAskForAGroup()) MakeGroup();
      idle_polls = Poll() ? 0 : idle_polls + 1;
    } catch (const CommError& error) {
      Die({error.kind(), error.message()}, nullptr);
    } catch (const std::exception& error) {
      Die({CommFailure::Kind::kLibrary, error.what()}, nullptr);
    }
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  finished_.notify_all();
}

// Sleeps until the next submission if idle, or until the next poll unless a rank begins to wait.
// Returns false if the engine must end.
bool MpiEngine::Loop::TakeSubmissions(int idle_polls) {
  std::unique_lock lock(mutex_);
  const auto wake = [&] {
    return !submissions_.empty() || stop_ || kill_.has_value() || begins_to_wait_;
  };
  if (dead_ || !HasWork()) {
    submitted_.wait(lock, [&] { return !submissions_.empty() || stop_ || (kill_ && !dead_); });
  } else if (idle_polls > kEagerPolls) {
    submitted_.wait_for(lock, PollInterval(), wake);
  }
  begins_to_wait_ = false;
  for (; !submissions_.empty(); submissions_.pop_front()) {
    const std::shared_ptr<MpiJob>& job = submissions_.front();
    if (job->split) {
      asked_[groups_[job->group]->rank_in_process].push_back(job);
    } else {
      groups_[job->group]->waiting.push_back(job);
    }
  }
  ForgiveWhatIsDone();
  if (kill_ || dead_) {
    const CommFailure failure = dead_ ? *dead_ : *kill_;
    const std::shared_ptr<MpiJob> culprit = dead_ ? nullptr : kill_culprit_;
    const bool stop = stop_;
    lock.unlock();
    Die(failure, culprit);
    return !stop;
  }
  return !stop_;
}

// Cancels the kill that a timed-out job requested if the job completed after its deadline but
// before it was given up. Its caller and the world then continue. Requires mutex_.
void MpiEngine::Loop::ForgiveWhatIsDone() {
  if (kill_culprit_ == nullptr || kill_culprit_->state != MpiJob::State::kDone) return;
  kill_.reset();
  kill_culprit_.reset();
}

bool MpiEngine::Loop::HasWork() const {
  return !requests_.empty() || AllAskForAGroup() ||
         std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return !group->waiting.empty(); });
}

bool MpiEngine::Loop::AllAskForAGroup() const {
  return std::all_of(asked_.begin(), asked_.end(),
                     [](const auto& of_rank) { return !of_rank.empty(); });
}

// Gathers the color, key and rank of every rank of the world for its next group. Returns them by
// world rank.
std::vector<SplitPlace> MpiEngine::Loop::GatherSplits() const {
  static_assert(sizeof(SplitPlace) == 3 * sizeof(int));
  std::vector<SplitPlace> own(max_ranks_), all(max_ranks_ * num_processes_);
  for (size_t i = 0; i < asked_.size(); ++i) own[i] = *asked_[i].front()->split;
  HL_MPI(MPI_Allgather(own.data(), 3 * max_ranks_, MPI_INT, all.data(), 3 * max_ranks_, MPI_INT,
                       processes_));
  std::vector<SplitPlace> of_world;
  for (const Place& place : places_)
    of_world.push_back(all[place.process * max_ranks_ + place.rank_in_process]);
  return of_world;
}

// Runs only while no message is open: these calls block, and an open message could wait for a rank
// that itself waits for arithmetic of this engine.
void MpiEngine::Loop::MakeGroup() {
  const std::vector<SplitPlace> of_world = GatherSplits();
  const auto channels = std::make_shared<const Channels>(processes_, max_ranks_);
  for (std::deque<std::shared_ptr<MpiJob>>& asked : asked_) {
    MpiJob& job = *asked.front();
    const GroupState& parent = *groups_[job.group];
    auto group = std::make_unique<GroupState>();
    group->channels = channels;
    group->rank_in_process = parent.rank_in_process;
    group->world_ranks = MembersOf(of_world, job.split->color);
    group->rank = IndexOf(group->world_ranks, parent.world_ranks[parent.rank]);
    {
      const std::lock_guard lock(mutex_);
      job.made = {static_cast<GroupId>(groups_.size()), group->rank,
                  static_cast<int>(group->world_ranks.size()), group->world_ranks};
      groups_.push_back(std::move(group));
    }
    Finish(job, MpiJob::State::kDone);
    asked.pop_front();
  }
}

void MpiEngine::Loop::StartJobs(GroupState& group) {
  while (!group.active && !group.waiting.empty()) {
    group.active = std::make_unique<ActiveJob>();
    ActiveJob& active = *group.active;
    active.job = group.waiting.front();
    group.waiting.pop_front();
    for (int lane = 0; lane < kLanes; ++lane) {
      active.lanes[lane].active = true;
      active.lanes[lane].chain = lane - kLanes;
    }
    for (int lane = 0; lane < kLanes; ++lane) Advance(group, active, lane);
    FinishIfThrough(group);
  }
}

void MpiEngine::Loop::FinishIfThrough(GroupState& group) {
  if (!group.active->finished()) return;
  Finish(*group.active->job, MpiJob::State::kDone);
  group.active.reset();
}

// Called when the lane's round has no open message. Runs the next steps until a round has open
// messages or the lane is finished.
void MpiEngine::Loop::Advance(GroupState& group, ActiveJob& job, int lane_index) {
  Lane& lane = job.lanes[lane_index];
  const ExchangePlan& plan = job.job->spec.plan;
  while (lane.open_messages == 0) {
    if (lane.round < lane.rounds.size()) {
      if (lane.rounds[lane.round].then) lane.rounds[lane.round].then();
      ++lane.round;
    }
    if (lane.round >= lane.rounds.size()) {
      lane.chain += kLanes;
      lane.round = 0;
      lane.rounds.clear();  // frees staging
      if (lane.chain >= plan.num_chains) {
        lane.active = false;
        return;
      }
      lane.rounds = plan.make_chain(lane.chain);
      if (lane.rounds.empty()) continue;
    }
    Post(group, job, lane_index);
  }
}

void MpiEngine::Loop::Post(GroupState& group, ActiveJob& job, int lane_index) {
  Lane& lane = job.lanes[lane_index];
  const Round& round = lane.rounds[lane.round];
  // Below 2^15, the smallest upper bound of tags that MPI guarantees.
  const int tag = static_cast<int>(job.job->spec.tag) * kLanes + lane_index;
  const int own = group.rank_in_process;
  const auto add = [&](const Message& message, bool receive) {
    const Place& peer = places_[group.world_ranks[message.peer]];
    requests_.push_back(MPI_REQUEST_NULL);
    messages_.push_back({&job, lane_index, message.peer, receive});
    ++lane.open_messages;
    const int bytes = static_cast<int>(message.bytes);
    if (receive) {
      HL_MPI(MPI_Irecv(message.data, bytes, MPI_BYTE, peer.process, tag,
                       group.channels->Between(peer.rank_in_process, own), &requests_.back()),
             job.job->spec.what);
    } else {
      HL_MPI(MPI_Isend(message.data, bytes, MPI_BYTE, peer.process, tag,
                       group.channels->Between(own, peer.rank_in_process), &requests_.back()),
             job.job->spec.what);
    }
  };
  moved_ = std::chrono::steady_clock::now();
  for (const Message& message : round.receives) add(message, true);
  for (const Message& message : round.sends) add(message, false);
}

// Returns true if a message completed.
bool MpiEngine::Loop::Poll() {
  if (requests_.empty()) return false;
  const int count = static_cast<int>(requests_.size());
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int completed = 0;
  const int code =
      MPI_Testsome(count, requests_.data(), &completed, indices_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < completed; ++i) {
      const OpenMessage& message = messages_[indices_[i]];
      HL_MPI(statuses_[i].MPI_ERROR, message.job->job->spec.what, ", a message ",
             message.receive ? "from" : "to", " rank ", WorldRank(message));
    }
  }
  HL_MPI(code);
  if (completed == MPI_UNDEFINED || completed == 0) return false;
  moved_ = std::chrono::steady_clock::now();

  std::vector<OpenMessage> done;
  for (int i = 0; i < completed; ++i) done.push_back(messages_[indices_[i]]);
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    messages_[kept++] = messages_[i];
  }
  requests_.resize(kept);
  messages_.resize(kept);
  for (const OpenMessage& message : done) {
    GroupState& group = *groups_[message.job->job->group];
    ActiveJob& job = *message.job;
    if (--job.lanes[message.lane].open_messages > 0) continue;
    Advance(group, job, message.lane);
    FinishIfThrough(group);
  }
  return true;
}

void MpiEngine::Loop::Finish(MpiJob& job, MpiJob::State state, CommFailure failure) {
  {
    const std::lock_guard lock(mutex_);
    job.failure = std::move(failure);
    job.state = state;
  }
  finished_.notify_all();
}

int MpiEngine::Loop::WorldRank(const OpenMessage& message) const {
  return groups_[message.job->job->group]->world_ranks[static_cast<size_t>(message.peer)];
}

std::string MpiEngine::Loop::MissingPeers(const MpiJob& job) const {
  std::set<int> silent, deaf;
  for (const OpenMessage& message : messages_) {
    if (message.job->job.get() == &job)
      (message.receive ? silent : deaf).insert(WorldRank(message));
  }
  const std::set<int>& missing = silent.empty() ? deaf : silent;
  if (missing.empty() && job.split) return "; another rank has not reached it";
  if (missing.empty()) return "; it queues behind an earlier operation of its group";
  return Concat(silent.empty() ? "; not received by rank " : "; nothing came from rank ",
                JoinRanks({missing.begin(), missing.end()}));
}

// `culprit` fails with `failure`. All other jobs fail as aborted, except that a library failure
// applies to every job. Requests are dropped without cancelling them: without further MPI calls
// nothing progresses, so their buffers are not accessed.
void MpiEngine::Loop::Die(CommFailure failure, const std::shared_ptr<MpiJob>& culprit) {
  std::vector<std::shared_ptr<MpiJob>> open;
  for (auto& asked : asked_) {
    open.insert(open.end(), asked.begin(), asked.end());
    asked.clear();
  }
  for (const std::unique_ptr<GroupState>& group : groups_) {
    if (group->active) open.push_back(group->active->job);
    open.insert(open.end(), group->waiting.begin(), group->waiting.end());
  }
  if (culprit != nullptr) failure.text += MissingPeers(*culprit);
  {
    const std::lock_guard lock(mutex_);
    dead_ = failure;
  }
  const bool library = failure.kind == CommFailure::Kind::kLibrary;
  for (const std::shared_ptr<MpiJob>& job : open) {
    if (job == culprit || library) {
      Finish(*job, MpiJob::State::kFailed, failure);
    } else {
      Finish(*job, MpiJob::State::kFailed,
             {CommFailure::Kind::kAborted,
              Concat(job->spec.what, ": stopped because ", failure.text)});
    }
  }
  requests_.clear();
  messages_.clear();
  for (const std::unique_ptr<GroupState>& group : groups_) {
    // Leaked on purpose, because a peer may still write into its staging memory.
    static_cast<void>(group->active.release());
    group->waiting.clear();
  }
}

}  // namespace halflife::dist
