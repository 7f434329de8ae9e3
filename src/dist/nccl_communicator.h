// CUDA tensors over NCCL; compiled only with CUDA. Each group has one communication stream. An
// operation starts after the work queued on the producer stream, and consumers wait for its event.
// NCCL sums in its own order and in the tensor's type.
#pragma once

#include <memory>
#include <string>

#include "dist/communicator.h"

namespace halflife::dist {

struct NcclOptions {
  double timeout_s = 180;       // deadline of one operation, counted from its issue
  double init_timeout_s = 600;  // deadline of the rendezvous and of a split
};

// Collective over `host`, which provides rank and size and broadcasts NCCL's unique id. Throws
// Error kEnvironment if two ranks share a GPU, or if the loaded NCCL version differs from the one
// compiled against.
std::unique_ptr<Communicator> MakeNcclCommunicator(Communicator& host, Device device,
                                                   std::string name, const NcclOptions& options);

}  // namespace halflife::dist
