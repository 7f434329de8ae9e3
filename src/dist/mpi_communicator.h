// Ranks as processes under mpirun or srun, CPU tensors only. All operations run on the process's
// MpiEngine, so they progress while the caller computes, and sum pairwise over ranks.
//
// Split is collective and waits until this process has no operation in flight. A desync (ranks
// issue different operations) shows as a timeout: messages of unlike operations never match.
#pragma once

#include <memory>
#include <string>

#include "dist/communicator.h"
#include "dist/mpi_engine.h"

namespace halflife::dist {

struct MpiCommunicatorOptions {
  double timeout_s = 180;  // of one operation, from its issue
  ExchangeLimits limits = {};
};

// `engine` outlives the communicator and all its operations.
std::unique_ptr<Communicator> MakeMpiCommunicator(MpiEngine& engine, MpiEngine::Group group,
                                                  std::string name,
                                                  const MpiCommunicatorOptions& options);

}  // namespace halflife::dist
