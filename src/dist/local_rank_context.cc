#include "dist/local_rank_context.h"

#include <unistd.h>

#include "core/host.h"
#include "core/log.h"
#include "dist/local_communicator.h"
#include "dist/mpi_rank_context.h"

namespace halflife::dist {
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
