// Exit codes of the `halflife` program: what a launcher or a batch script decides by.
#pragma once

namespace halflife {

enum class ExitCode : int {
  kFinished = 0,
  kDifference = 1,   // `ckpt diff|verify` found a difference or damage
  kUsage = 2,        // command line or configuration
  kData = 3,         // input text, token shards
  kEnvironment = 4,  // GPU, MPI, NCCL, lock held, run folder not writable
  kInternal = 70,
  kTimeout = 71,
  kPeerLost = 72,
  kNonFinite = 73,
  kCheckpointIo = 74,
  kRequeue = 75,  // saved; start me again
  kNoUsableCheckpoint = 76,
  kInterrupted = 130,  // stopped by the user after saving
};

}  // namespace halflife
