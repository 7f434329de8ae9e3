// Reports the versions of the libraries that move tensors between ranks.
#pragma once

#include <vector>

#include "core/versions.h"

namespace halflife::dist {

// Returns "MPI library" and, if compiled with CUDA, "CUDA runtime", "CUDA driver" and "NCCL". May
// be called before MPI is initialised, or without it.
std::vector<LibraryVersion> CommunicationLibraries();

}  // namespace halflife::dist
