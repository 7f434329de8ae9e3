// Which libraries this program was built with and runs with. Each area tells of those whose headers
// it includes; `halflife doctor` puts them together.
#pragma once

#include <string>
#include <vector>

namespace halflife {

struct LibraryVersion {
  std::string name;           // "HDF5", as launch/setup --check names it too
  std::string built, loaded;  // "1.10.8": of the headers, of the library that runs; empty: not
                              // known, or not there
};

// spdlog, fmt, xxHash, nlohmann-json.
std::vector<LibraryVersion> CoreLibraries();

}  // namespace halflife
