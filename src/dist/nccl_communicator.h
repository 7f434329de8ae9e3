// CUDA tensors over NCCL. Compiled only with CUDA. One communication stream per group; an operation
// starts after what the producer stream has queued, and consumers wait for its event. Sums are
// NCCL's own, in the tensor's type.
//
//   auto world = MakeNcclCommunicator(context.control(), {Device::Kind::kCuda, 0}, "world", {});
//   Work work = world->AllReduce(grads, ReduceOp::kSum, {"grad_bucket", 0}, compute_stream);
//   work.WaitOn(compute_stream);
#pragma once

#include <memory>
#include <string>

#include "dist/communicator.h"

namespace halflife::dist {

struct NcclOptions {
  double timeout_s = 180;       // of one operation, from its issue
  double init_timeout_s = 600;  // of the rendezvous and of a split
};

// Collective over `host`, which carries NCCL's unique id and gives rank and size. Throws Error
// kEnvironment when two ranks share a GPU, or the loaded NCCL is another version than the one
// compiled against.
std::unique_ptr<Communicator> MakeNcclCommunicator(Communicator& host, Device device,
                                                   std::string name, const NcclOptions& options);

}  // namespace halflife::dist
