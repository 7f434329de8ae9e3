#include "dist/rank_context.h"

#include <unistd.h>

#ifdef HALFLIFE_WITH_CUDA
#include "dist/nccl_communicator.h"
#endif

#include "core/host.h"
#include "core/log.h"
#include "dist/local_communicator.h"

namespace halflife::dist {
namespace {

// A world of one rank without a launcher. It does not use MPI, whose initialisation takes half a
// second.
class SingleRankContext final : public RankContext {
 public:
  explicit SingleRankContext(const RankConfig& config)
      : config_(config),
        world_(MakeSelfCommunicator("world")),
        control_(MakeSelfCommunicator("control")) {
    RecordIn(*world_, &flight_);
    RecordIn(*control_, &flight_);
  }

  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  const std::string& host() const override { return host_; }
  Communicator& world() override { return device_world_ ? *device_world_ : *world_; }
  Communicator& control() override { return *control_; }
  void UseDevice(Device device) override {
    device_world_.reset();
    if (!device.is_cuda()) return;
    device_world_ = MakeDeviceWorld(*control_, device, config_, std::make_shared<DeviceWatch>());
    RecordIn(*device_world_, &flight_);
  }
  void RequireSameConfig(const std::string&) override {}
  FlightRecorder& flight() override { return flight_; }
  [[noreturn]] void AbortWorld(int exit_code) noexcept override {
    log::Flush();
    ::_exit(exit_code);
  }

 private:
  const RankConfig config_;
  const std::string host_ = HostName();
  FlightRecorder flight_{0, 1};
  std::unique_ptr<Communicator> world_, control_, device_world_;
};

}  // namespace

std::unique_ptr<RankContext> RankContext::Create(const RankConfig& config) {
  const LauncherEvidence evidence = ReadLauncherEvidence();
  // A one-task step (`srun --pty bash`) often has no PMI, and MPI_Init would fail without need.
  const bool step_of_one = evidence.world_size == 1 && !evidence.has_pmi;
  if (!evidence.launched || step_of_one) return std::make_unique<SingleRankContext>(config);
  return MakeMpiRankContext(config, evidence);
}

std::unique_ptr<Communicator> MakeDeviceWorld([[maybe_unused]] Communicator& control, Device device,
                                              [[maybe_unused]] const RankConfig& config,
                                              [[maybe_unused]] std::shared_ptr<DeviceWatch> watch) {
#ifdef HALFLIFE_WITH_CUDA
  if (control.size() == 1) return MakeSelfCommunicator("world", Device::Kind::kCuda);
  return MakeNcclCommunicator(control, device, "world",
                              {.timeout_s = config.timeout_s,
                               .init_timeout_s = config.init_timeout_s,
                               .watch = std::move(watch),
                               .has_watchdog = config.on_stuck != nullptr});
#else
  HL_FAIL(ExitCode::kEnvironment, "this build has no CUDA, so cuda:", device.index,
          " cannot be used; configure with -DHALFLIFE_CUDA=ON, or train on the CPU");
#endif
}

namespace {

class LocalRankContext final : public RankContext {
 public:
  explicit LocalRankContext(Communicator& comm) : flight_(comm.rank(), comm.size()), world_(comm) {
    RecordIn(world_, &flight_);
    control_ = comm.Split(0, comm.rank(), "control");
  }
  ~LocalRankContext() override { RecordIn(world_, nullptr); }  // world_ may outlive this object

  int rank() const override { return world_.rank(); }
  int world_size() const override { return world_.size(); }
  int local_rank() const override { return world_.rank(); }
  int local_size() const override { return world_.size(); }
  int rank_in_process() const override { return world_.rank(); }
  int ranks_in_process() const override { return world_.size(); }
  const std::string& host() const override { return host_; }
  Communicator& world() override { return world_; }
  Communicator& control() override { return *control_; }
  void UseDevice(Device device) override { RequireCpuOfThreads(device); }
  void RequireSameConfig(const std::string& config_hash) override {
    CheckSameConfig(*control_, config_hash);
  }
  FlightRecorder& flight() override { return flight_; }
  [[noreturn]] void AbortWorld(int exit_code) noexcept override {
    log::Flush();
    ::_exit(exit_code);
  }

 private:
  FlightRecorder flight_;
  Communicator& world_;
  std::unique_ptr<Communicator> control_;
  const std::string host_ = HostName();
};

}  // namespace

std::unique_ptr<RankContext> MakeLocalRankContext(Communicator& comm) {
  return std::make_unique<LocalRankContext>(comm);
}

void RunLocalRanks(int size, const RankConfig& config,
                   const std::function<void(RankContext& context)>& body) {
  const auto rank_main = [&](Communicator& comm) {
    log::SpeakAsRank(comm.rank());
    body(*MakeLocalRankContext(comm));
  };
  LocalWorld::Run(size, rank_main, {.timeout_s = config.timeout_s});
}

}  // namespace halflife::dist
