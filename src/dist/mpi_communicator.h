// Ranks that are processes under mpirun or srun; CPU tensors only. All operations run on the
// process's MpiEngine: they progress while the caller computes, and sum pairwise over ranks.
//
// Split is collective and waits until this process has no operation in flight. A desync (ranks that
// issue different operations) appears as a timeout, because messages of different operations do not
// match.
#pragma once

#include <memory>
#include <string>

#include "dist/communicator.h"
#include "dist/mpi_engine.h"

namespace halflife::dist {

struct MpiCommunicatorOptions {
  double timeout_s = 180;  // deadline of one operation, counted from its issue
  ExchangeLimits limits = {};
};

// `engine` must outlive the communicator and all its operations.
std::unique_ptr<Communicator> MakeMpiCommunicator(MpiEngine& engine, MpiEngine::Group group,
                                                  std::string name,
                                                  const MpiCommunicatorOptions& options);

}  // namespace halflife::dist
