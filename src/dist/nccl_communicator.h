// CUDA tensors over NCCL; compiled only with CUDA. An operation starts after the work queued on the
// producer stream, and consumers wait for its event. NCCL sums in its own order and in the tensor's
// type, unless SumInOrder was called.
//
// Each group has one communication stream and one NCCL communicator, which is made when the group
// issues its first operation. A group that is only split therefore costs no GPU memory.
//
// No communicator is aborted. ncclCommAbort blocks while kernels of other groups are stuck, so a
// process with a failed group ends without releasing its communicators.
#pragma once

#include <memory>
#include <string>

#include "dist/communicator.h"
#include "dist/device_watch.h"

namespace halflife::dist {

struct NcclOptions {
  double timeout_s = 180;  // deadline of one operation, counted from its issue
  // Deadline of the rendezvous of a group, from the first rank that begins it.
  double init_timeout_s = 600;
  // Where the group reports calls, asynchronous errors and the rounds of its poller.
  std::shared_ptr<DeviceWatch> watch = std::make_shared<DeviceWatch>();
  // A Watchdog reads `watch` and knows which ranks may be late, so waits of the host have no
  // deadline of their own.
  bool has_watchdog = false;
};

// Makes a group of the ranks of `host`. The group, and all groups that are split from it, use
// `host` for their rendezvous. Collective over `host`. Throws Error kEnvironment if two ranks share
// a GPU without HALFLIFE_SHARE_GPU=1, or if the loaded NCCL version differs from the one compiled
// against.
std::unique_ptr<Communicator> MakeNcclCommunicator(Communicator& host, Device device,
                                                   std::string name, const NcclOptions& options);

}  // namespace halflife::dist
