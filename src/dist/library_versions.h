// The libraries that move tensors between ranks: what this program was built with and what it runs
// with.
#pragma once

#include <string>
#include <vector>

namespace halflife::dist {

struct LibraryVersion {
  std::string name;           // "MPI library", "NCCL", "CUDA runtime", "CUDA driver"
  std::string built, loaded;  // "Open MPI 4.1.4"; empty: not known, not there
};
// MPI, and with CUDA compiled in NCCL and CUDA. Works before and without MPI's initialisation.
std::vector<LibraryVersion> CommunicationLibraries();

}  // namespace halflife::dist
