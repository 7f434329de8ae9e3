// Exit codes of the `halflife` program. Launchers and batch scripts use them to decide what to do
// next.
#pragma once

namespace halflife {

enum class ExitCode : int {
  kFinished = 0,
  kDifference = 1,   // `ckpt diff` or `ckpt verify` found a difference or damage
  kUsage = 2,        // invalid command line or configuration
  kData = 3,         // invalid input text or token shards
  kEnvironment = 4,  // GPU, MPI or NCCL problem, lock held, run folder not writable
  kInternal = 70,
  kTimeout = 71,
  kPeerLost = 72,
  kNonFinite = 73,
  kCheckpointIo = 74,
  kRequeue = 75,  // state is saved; start the program again
  kNoUsableCheckpoint = 76,
  kInterrupted = 130,  // the user stopped the run; state is saved
};

}  // namespace halflife
