// Versions of libraries: of those that only the command line asks, and the verdict on any.
#pragma once

#include <string>

#include "cli/doctor/finding.h"
#include "core/library_versions.h"

namespace halflife::cli::doctor {

// What the library that runs says of itself: "2.11.0"; "" where it says nothing.
std::string LoadedTorch();
std::string LoadedProtobuf();

// WARN where another version runs than was built with. `maps`: the text of /proc/self/maps, for the
// path of its file; what has none is compiled in.
Finding JudgeLibrary(const LibraryVersion& library, const std::string& maps);

}  // namespace halflife::cli::doctor
