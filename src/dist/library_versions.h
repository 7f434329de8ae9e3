// The libraries that move tensors between ranks.
#pragma once

#include <vector>

#include "core/library_versions.h"

namespace halflife::dist {

// "MPI library", and with CUDA compiled in "CUDA runtime", "CUDA driver" and "NCCL". Works before
// and without MPI's initialisation.
std::vector<LibraryVersion> CommunicationLibraries();

}  // namespace halflife::dist
