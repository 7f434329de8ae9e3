// A RankContext over one rank of a LocalWorld: the trainer's parts run on threads, without MPI.
#pragma once

#include <cstdlib>
#include <string>

#include "dist/rank_context.h"

namespace halflife::test {

class LocalRankContext : public dist::RankContext {
 public:
  explicit LocalRankContext(dist::Communicator& comm)
      : comm_(comm), control_(comm.Split(0, comm.rank(), "control")) {}
  int rank() const override { return comm_.rank(); }
  int world_size() const override { return comm_.size(); }
  int local_rank() const override { return comm_.rank(); }
  int local_size() const override { return comm_.size(); }
  const std::string& host() const override { return host_; }
  dist::Communicator& world() override { return comm_; }
  dist::Communicator& control() override { return *control_; }
  void UseDevice(Device) override {}
  void RequireSameConfig(const std::string&) override {}
  [[noreturn]] void AbortWorld(int) noexcept override { std::abort(); }

 private:
  dist::Communicator& comm_;
  std::unique_ptr<dist::Communicator> control_;
  std::string host_ = "local";
};

}  // namespace halflife::test
