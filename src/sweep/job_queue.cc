#include "sweep/job_queue.h"

#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "core/clock.h"
#include "core/concat.h"
#include "core/log.h"

namespace halflife::sweep {
namespace {

class Queue {
 public:
  Queue(const std::vector<Job>& jobs, const Slots& slots) : jobs_(jobs), slots_(slots) {
    for (size_t id = 0; id < jobs.size(); ++id) waiting_.push_back(id);
    for (int slot = 0; slot < slots.count; ++slot) free_.insert(slot);
  }

  int Run() {
    while (true) {
      while (stopped_by_ == 0 && !waiting_.empty() && !free_.empty()) StartNext();
      if (running_.empty()) return stopped_by_;
      const ChildEvent event = children_.Wait();
      if (event.signal != 0) {
        stopped_by_ = event.signal;
        HL_WARN("sweep", "stopped by the signal ", ::strsignal(event.signal), ": ", running_.size(),
                " running, ", waiting_.size(), " not started");
        children_.Signal(event.signal == SIGHUP ? SIGTERM : event.signal);
      } else {
        End(event);
      }
    }
  }

 private:
  struct Running {
    int slot = 0;
    Stopwatch clock;
  };

  void StartNext() {
    const size_t id = waiting_.front();
    waiting_.pop_front();
    if (!jobs_[id].started()) return;
    const int slot = *free_.begin();
    free_.erase(free_.begin());
    ChildCommand command = jobs_[id].command;
    command.id = id;
    if (!slots_.gpus.empty()) {
      const size_t gpu = static_cast<size_t>(slot) % slots_.gpus.size();
      command.environment.emplace_back("CUDA_VISIBLE_DEVICES", slots_.gpus[gpu]);
    }
    if (slots_.threads > 0)
      command.environment.emplace_back("OMP_NUM_THREADS", Concat(slots_.threads));
    children_.Start(command);
    running_[id] = {.slot = slot, .clock = {}};
  }

  void End(const ChildEvent& event) {
    const Running ended = running_.at(event.id);
    running_.erase(event.id);
    free_.insert(ended.slot);
    const bool again =
        jobs_[event.id].ended(event.exit_code, ended.clock.Seconds(), stopped_by_ != 0);
    if (again) waiting_.push_back(event.id);
  }

  const std::vector<Job>& jobs_;
  const Slots& slots_;
  ChildProcesses children_;
  std::deque<size_t> waiting_;
  std::set<int> free_;
  std::map<size_t, Running> running_;
  int stopped_by_ = 0;
};

}  // namespace

int RunJobs(const std::vector<Job>& jobs, const Slots& slots) { return Queue(jobs, slots).Run(); }

}  // namespace halflife::sweep
