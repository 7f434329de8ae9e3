// The libraries for reading text and storing tokens, except sentencepiece (sentencepiece_bridge.h).
#pragma once

#include <vector>

#include "core/versions.h"

namespace halflife::data {

// Returns the versions of HDF5, PCRE2, utf8proc, zstd and zlib.
std::vector<LibraryVersion> DataLibraries();

}  // namespace halflife::data
