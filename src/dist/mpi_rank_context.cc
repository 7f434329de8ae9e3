#include "dist/rank_context.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/threads.h"
#include "dist/mpi_engine.h"
#include "dist/mpi_loop.h"
#include "dist/request.h"
#include "dist/watchdog.h"

namespace halflife::dist {
namespace {

constexpr const char* kProtocol = "halflife wire protocol 1";
constexpr auto kAbortGrace = std::chrono::seconds(10);

// Initialises and finalises MPI on one thread, the main one.
class MpiLibrary {
 public:
  MpiLibrary() {
    int already = 0, provided = MPI_THREAD_SINGLE;
    MPI_Initialized(&already);
    HL_CHECK(!already, "MPI is already initialised. Create only one RankContext per process.");
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    HL_CHECK_AS(ExitCode::kEnvironment, provided >= MPI_THREAD_SERIALIZED,
                "this MPI library supports only thread level ", provided,
                ". Use a library with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE.");
  }
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;
  // Does not call MPI_Finalize in a process that failed, because it would wait for its peers. The
  // launcher ends all peers when this process exits.
  ~MpiLibrary() {
    if (sound_) MPI_Finalize();
  }
  void MarkSound() { sound_ = true; }

 private:
  bool sound_ = false;
};

std::string MpiVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, static_cast<size_t>(length));
  return version.substr(0, version.find(','));
}

void CheckWorldSize(const LauncherEvidence& evidence, int mpi_size) {
  if (evidence.world_size == mpi_size || evidence.world_size <= 1) return;
  HL_CHECK_AS(ExitCode::kEnvironment, mpi_size != 1, "the launcher started ", evidence.world_size,
              " tasks, but MPI sees a world of 1: srun --mpi=pmix is missing or MPI lacks PMIx; "
              "try `srun --mpi=pmix`, or start with mpirun inside the allocation");
  HL_FAIL(ExitCode::kEnvironment, "the launcher's environment says ", evidence.world_size,
          " ranks, MPI says ", mpi_size, "; start all ranks with one mpirun or srun");
}

// MPI and its engine, which exist as long as any rank of this process does. Created and destroyed
// by the main thread.
class MpiProcess {
 public:
  MpiProcess(int num_ranks, const LauncherEvidence& evidence)
      : num_ranks_(num_ranks), engine_(num_ranks) {
    CheckWorldSize(evidence, engine_.num_processes());
  }
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;
  ~MpiProcess() {
    if (num_sound_ == num_ranks_) library_.MarkSound();
  }
  int num_ranks() const { return num_ranks_; }
  MpiEngine& engine() { return engine_; }
  // Called for each rank that reached the final barrier.
  void MarkSound() { ++num_sound_; }

 private:
  const int num_ranks_;
  std::atomic<int> num_sound_{0};
  MpiLibrary library_;
  MpiEngine engine_;
};

class MpiRankContext final : public RankContext {
 public:
  MpiRankContext(std::shared_ptr<MpiProcess> process, int rank_in_process,
                 const RankConfig& config);
  ~MpiRankContext() override;

  int rank() const override { return control_->rank(); }
  int world_size() const override { return control_->size(); }
  int local_rank() const override {
    return process_->engine().node().first_rank + rank_in_process_;
  }
  int local_size() const override { return process_->engine().node().size; }
  int rank_in_process() const override { return rank_in_process_; }
  int ranks_in_process() const override { return process_->num_ranks(); }
  const std::string& host() const override { return host_; }
  Communicator& world() override { return device_world_ ? *device_world_ : *world_; }
  Communicator& control() override { return *control_; }
  void UseDevice(Device device) override;
  void RequireSameConfig(const std::string& config_hash) override {
    CheckSameConfig(*control_, config_hash);
  }
  FlightRecorder& flight() override { return *flight_; }
  [[noreturn]] void AbortWorld(int exit_code) noexcept override;

 private:
  void Hello(const RankConfig& config);

  const RankConfig config_;
  const std::string host_ = HostName();
  const int exceptions_ = std::uncaught_exceptions();
  const std::shared_ptr<MpiProcess> process_;
  const int rank_in_process_;
  std::optional<FlightRecorder> flight_;
  std::unique_ptr<Communicator> control_, world_, device_world_;
  std::optional<Watchdog> watchdog_;  // of a world of GPUs
};

MpiRankContext::MpiRankContext(std::shared_ptr<MpiProcess> process, int rank_in_process,
                               const RankConfig& config)
    : config_(config), process_(std::move(process)), rank_in_process_(rank_in_process) {
  MpiEngine& engine = process_->engine();
  const MpiEngine::Group all = engine.world(rank_in_process);
  {
    const std::unique_ptr<Communicator> first =
        MakeMpiCommunicator(engine, all, "hello", {.timeout_s = config.init_timeout_s});
    first->Barrier({"hello", 0}).WaitHost();  // later operations have the normal timeout
  }
  const MpiCommunicatorOptions options{.timeout_s = config.timeout_s};
  control_ = MakeMpiCommunicator(engine, engine.Split(all.id, 0, all.rank, config.timeout_s),
                                 "control", options);
  world_ = MakeMpiCommunicator(engine, engine.Split(all.id, 0, all.rank, config.timeout_s), "world",
                               options);
  flight_.emplace(all.rank, all.size);
  RecordIn(*control_, &*flight_);
  RecordIn(*world_, &*flight_);
  Hello(config);
}

// Exchanges the location and versions of every rank. All ranks must run the same versions.
void MpiRankContext::Hello(const RankConfig& config) {
  const std::string versions = Concat(kProtocol, "; ", MpiVersion(), "; ", config.build);
  const std::vector<std::string> places =
      AllGatherBytes(*control_, Concat(host_, " pid ", ::getpid()), {"hello", 1});
  const std::vector<std::string> all = AllGatherBytes(*control_, versions, {"hello", 2});
  const std::vector<int> odd = OddRanks(all);
  if (odd.empty()) return;
  HL_FAIL(ExitCode::kEnvironment, "ranks run different versions: rank ", JoinRanks(odd), " (",
          places[odd[0]], ") runs [", all[odd[0]], "], the others [", UsualValue(all),
          "]; install one build on every host");
}

void MpiRankContext::UseDevice(Device device) {
  watchdog_.reset();
  device_world_.reset();
  if (!device.is_cuda()) return;
  if (ranks_in_process() > 1) RequireCpuOfThreads(device);
  const auto watch = std::make_shared<DeviceWatch>();
  device_world_ = MakeDeviceWorld(*control_, device, config_, watch);
  RecordIn(*device_world_, &*flight_);
  if (world_size() == 1 || !config_.on_stuck) return;
  WatchLimits limits = {.timeout_s = config_.timeout_s};
  limits.data_s = std::max(limits.data_s, limits.timeout_s);
  limits.save_s = std::max(limits.save_s, limits.timeout_s);
  watchdog_.emplace(*flight_, watch, limits,
                    [this](const CommFailure& failure) { config_.on_stuck(*this, failure); });
}

MpiRankContext::~MpiRankContext() {
  watchdog_.reset();
  device_world_.reset();
  // If a rank fails, mpirun kills every rank that still runs, even after MPI_Finalize. Therefore no
  // rank leaves before all have arrived here, and no rank waits while a failure is being handled.
  const bool unwinding = std::uncaught_exceptions() > exceptions_;
  try {
    if (!unwinding && process_->engine().healthy()) {
      control_->Barrier({"goodbye", 0}).WaitHost();
      process_->MarkSound();
    }
  } catch (const std::exception& error) {
    HL_WARN("dist", "the last barrier failed: ", error.what());
  }
}

void MpiRankContext::AbortWorld(int exit_code) noexcept {
  log::Flush();
  try {
    std::thread([exit_code] {
      std::this_thread::sleep_for(kAbortGrace);
      ::_exit(exit_code);  // in case MPI_Abort itself hangs
    }).detach();
  } catch (const std::exception&) {  // no thread is available; only MPI_Abort is called
  }
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  ::_exit(exit_code);
}

}  // namespace

std::string UsualValue(const std::vector<std::string>& values) {
  std::map<std::string, int> votes;
  for (const std::string& value : values) ++votes[value];
  return *std::ranges::max_element(values, {},
                                   [&](const std::string& value) { return votes[value]; });
}

std::vector<int> OddRanks(const std::vector<std::string>& values) {
  const std::string usual = UsualValue(values);
  std::vector<int> odd;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if (values[rank] != usual) odd.push_back(static_cast<int>(rank));
  }
  return odd;
}

void CheckSameConfig(Communicator& control, const std::string& config_hash) {
  const std::vector<std::string> all = AllGatherBytes(control, config_hash, {"config_hash", 0});
  const std::vector<int> odd = OddRanks(all);
  if (odd.empty()) return;
  HL_FAIL(ExitCode::kUsage, "ranks disagree about the config: rank ", JoinRanks(odd), " has hash ",
          all[odd[0]], ", the others ", UsualValue(all),
          "; pass the same recipe and overrides on every rank");
}

void RequireCpuOfThreads(Device device) {
  HL_CHECK_AS(
      ExitCode::kUsage, !device.is_cuda(),
      "ranks that are threads of one process compute on the CPU. Use train.device 'cpu', or "
      "start one process per GPU with mpirun.");
}

std::unique_ptr<RankContext> MakeMpiRankContext(const RankConfig& config,
                                                const LauncherEvidence& evidence) {
  return std::make_unique<MpiRankContext>(std::make_shared<MpiProcess>(1, evidence), 0, config);
}

void RunMpiRanks(int count, const RankConfig& config, const LauncherEvidence& evidence,
                 const std::function<void(RankContext& context)>& body) {
  const auto process = std::make_shared<MpiProcess>(count, evidence);
  FirstCause first;
  const auto rank_main = [&](int rank_in_process) {
    const auto failed = [&](const char* what, bool consequence) {
      first.Add(std::current_exception(), consequence);
      process->engine().Abort(Concat("a rank of this process failed: ", what));
    };
    try {
      MpiRankContext context(process, rank_in_process, config);
      if (rank_in_process > 0) log::SpeakAsRank(context.rank());
      body(context);
    } catch (const CommError& error) {
      failed(error.what(), error.kind() == CommFailure::Kind::kAborted);
    } catch (const std::exception& error) {
      failed(error.what(), false);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    try {
      threads.push_back(StartThread([&, rank] { rank_main(rank); }));
    } catch (const Error& error) {  // ranks that already run wait for this one
      first.Add(std::current_exception(), /*consequence=*/false);
      process->engine().Abort(Concat("a rank of this process failed: ", error.message()));
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  first.RethrowAny();
}

}  // namespace halflife::dist
