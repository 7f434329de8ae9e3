// Which program and libraries a run's checkpoints are written with, for people who compare runs.
#pragma once

#include "ckpt/state.h"

namespace halflife::train {

// The versions of the libraries that are loaded, where these tell; cuda and nccl stay empty in a
// build without CUDA. The compiler's and protobuf's are the store's to add.
ckpt::Versions VersionsHere();

}  // namespace halflife::train
