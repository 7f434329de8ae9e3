// The libraries that this program was built with and runs with. Each area lists the libraries whose
// headers it includes; `halflife doctor` combines the lists.
#pragma once

#include <string>
#include <vector>

namespace halflife {

struct LibraryVersion {
  std::string name;  // e.g. "HDF5"; `launch/setup --check` uses the same names
  // e.g. "1.10.8": the version of the headers and of the loaded library; empty if unknown or
  // absent.
  std::string built, loaded;
};

// spdlog, fmt, xxHash, nlohmann-json.
std::vector<LibraryVersion> CoreLibraries();

}  // namespace halflife
