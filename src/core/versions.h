// The commit that this program was built from, and the libraries that it was built with and runs
// with. Each area lists the libraries whose headers it includes; `halflife doctor` combines the
// lists.
#pragma once

#include <string>
#include <vector>

namespace halflife {

// Identifies this build in run logs, checkpoints and the handshake of the ranks.
struct BuildInfo {
  const char* version;   // version of the project, e.g. "0.1.0"
  const char* git_hash;  // 12 digits; empty if built outside a git checkout
  bool git_dirty;        // tracked files differed from the commit
};
BuildInfo GetBuildInfo();

struct LibraryVersion {
  std::string name;  // e.g. "HDF5"; `launch/setup --check` uses the same names
  // e.g. "1.10.8": the version of the headers and of the loaded library; empty if unknown or
  // absent.
  std::string built, loaded;
};

// spdlog, fmt, xxHash, nlohmann-json.
std::vector<LibraryVersion> CoreLibraries();

}  // namespace halflife
