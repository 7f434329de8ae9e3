// Versions of the program and its libraries, which checkpoints store for comparison of runs.
#pragma once

#include "ckpt/state.h"

namespace halflife::train {

// Returns the versions of the loaded libraries, if they report them. cuda and nccl are empty in a
// build without CUDA. The store adds those of the compiler and of protobuf.
ckpt::Versions VersionsHere();

}  // namespace halflife::train
