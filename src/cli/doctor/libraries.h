// Versions of libraries that only the command line needs, and the verdict on any library.
#pragma once

#include <string>

#include "cli/doctor/finding.h"
#include "core/versions.h"

namespace halflife::cli::doctor {

// Returns the version that the loaded library reports, for example "2.11.0", or "".
std::string LoadedTorch();
std::string LoadedProtobuf();

// WARN if the loaded version differs from the build version. `maps` is the text of /proc/self/maps,
// which contains the path of the library's file. A library without a file is compiled in.
Finding JudgeLibrary(const LibraryVersion& library, const std::string& maps);

}  // namespace halflife::cli::doctor
