#include "dist/mpi_rank_context.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <thread>

#include "core/host.h"
#include "core/log.h"
#include "dist/mpi_check.h"
#include "dist/mpi_communicator.h"

namespace halflife::dist {
namespace {

constexpr const char* kProtocol = "halflife wire protocol 1";
constexpr auto kAbortGrace = std::chrono::seconds(10);

// MPI is initialised and finalised on one thread, the main one.
class MpiLibrary {
 public:
  MpiLibrary() {
    int already = 0, provided = MPI_THREAD_SINGLE;
    MPI_Initialized(&already);
    HL_CHECK(!already, "MPI is initialised already; a process has one RankContext");
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    HL_CHECK_AS(ExitCode::kEnvironment, provided >= MPI_THREAD_SERIALIZED,
                "this MPI library grants thread level ", provided,
                " only; halflife needs MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE");
  }
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;
  // A failed process leaves MPI running: MPI_Finalize would wait for its peers, and the launcher
  // ends them all when this process exits.
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

class MpiRankContext final : public RankContext {
 public:
  MpiRankContext(const RankConfig& config, const LauncherEvidence& evidence);
  ~MpiRankContext() override;

  int rank() const override { return control_->rank(); }
  int world_size() const override { return control_->size(); }
  int local_rank() const override { return node_.rank; }
  int local_size() const override { return node_.size; }
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
  MpiLibrary library_;
  std::unique_ptr<MpiEngine> engine_;
  MpiEngine::Group node_;
  std::optional<FlightRecorder> flight_;
  std::unique_ptr<Communicator> control_, world_, device_world_;
};

MpiRankContext::MpiRankContext(const RankConfig& config, const LauncherEvidence& evidence)
    : config_(config) {
  engine_ = std::make_unique<MpiEngine>();
  const MpiEngine::Group all = engine_->world();
  CheckWorldSize(evidence, all.size);
  {
    const std::unique_ptr<Communicator> first =
        MakeMpiCommunicator(*engine_, all, "hello", {.timeout_s = config.init_timeout_s});
    first->Barrier({"hello", 0}).WaitHost();  // what follows has the ordinary deadline
  }
  node_ = engine_->SplitByNode(all.id, config.init_timeout_s);
  const MpiCommunicatorOptions options{.timeout_s = config.timeout_s};
  control_ = MakeMpiCommunicator(*engine_, engine_->Split(all.id, 0, all.rank, config.timeout_s),
                                 "control", options);
  world_ = MakeMpiCommunicator(*engine_, engine_->Split(all.id, 0, all.rank, config.timeout_s),
                               "world", options);
  flight_.emplace(all.rank, all.size);
  RecordIn(*control_, &*flight_);
  RecordIn(*world_, &*flight_);
  Hello(config);
}

// Every rank tells where it runs and what it runs; all must run the same.
void MpiRankContext::Hello(const RankConfig& config) {
  const std::string versions = Concat(kProtocol, "; ", MpiVersion(), "; ", config.build);
  const std::vector<std::string> places =
      AllGatherBytes(*control_, Concat(host_, " pid ", ::getpid()), {"hello", 1});
  const std::vector<std::string> all = AllGatherBytes(*control_, versions, {"hello", 2});
  const std::vector<int> odd = OddRanks(all);
  if (odd.empty()) return;
  const auto usual = std::find_if(all.begin(), all.end(),
                                  [&](const std::string& text) { return text != all[odd[0]]; });
  HL_FAIL(ExitCode::kEnvironment, "ranks run different versions: rank ", JoinRanks(odd), " (",
          places[odd[0]], ") runs [", all[odd[0]], "], the others [", *usual,
          "]; install one build on every host");
}

void MpiRankContext::UseDevice(Device device) {
  device_world_.reset();
  if (!device.is_cuda()) return;
  device_world_ = MakeDeviceWorld(*control_, device, config_.timeout_s, config_.init_timeout_s);
  RecordIn(*device_world_, &*flight_);
}

MpiRankContext::~MpiRankContext() {
  device_world_.reset();
  // mpirun kills whoever still runs when another rank has failed, even after MPI_Finalize. So no
  // rank leaves before all are here, and with a failure under way nobody waits.
  const bool unwinding = std::uncaught_exceptions() > exceptions_;
  try {
    if (!unwinding && engine_->healthy()) {
      control_->Barrier({"goodbye", 0}).WaitHost();
      library_.MarkSound();
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
      ::_exit(exit_code);  // MPI_Abort itself hangs
    }).detach();
  } catch (const std::exception&) {  // no thread to be had; MPI_Abort will do
  }
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  ::_exit(exit_code);
}

}  // namespace

std::vector<int> OddRanks(const std::vector<std::string>& values) {
  std::map<std::string, int> votes;
  for (const std::string& value : values) ++votes[value];
  const std::string* usual = nullptr;
  for (const std::string& value : values) {
    if (usual == nullptr || votes[value] > votes[*usual]) usual = &value;
  }
  std::vector<int> odd;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if (values[rank] != *usual) odd.push_back(static_cast<int>(rank));
  }
  return odd;
}

void CheckSameConfig(Communicator& control, const std::string& config_hash) {
  const std::vector<std::string> all = AllGatherBytes(control, config_hash, {"config_hash", 0});
  const std::vector<int> odd = OddRanks(all);
  if (odd.empty()) return;
  const auto usual = std::find_if(all.begin(), all.end(),
                                  [&](const std::string& text) { return text != all[odd[0]]; });
  HL_FAIL(ExitCode::kUsage, "ranks disagree about the config: rank ", JoinRanks(odd), " has hash ",
          all[odd[0]], ", the others ", *usual,
          "; pass the same recipe and overrides on every rank");
}

std::unique_ptr<RankContext> MakeMpiRankContext(const RankConfig& config,
                                                const LauncherEvidence& evidence) {
  return std::make_unique<MpiRankContext>(config, evidence);
}

}  // namespace halflife::dist
