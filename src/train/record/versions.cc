#include "train/record/versions.h"

#include <torch/version.h>

#include <string_view>

#include "core/versions.h"
#include "data/library_versions.h"
#include "dist/library_versions.h"

namespace halflife::train {
namespace {

// Returns an empty string if `libraries` does not have the name, because the build lacks the
// library.
std::string VersionOf(std::string_view name, const std::vector<LibraryVersion>& libraries) {
  for (const LibraryVersion& library : libraries)
    if (library.name == name) return library.loaded.empty() ? library.built : library.loaded;
  return "";
}

}  // namespace

ckpt::Versions VersionsHere() {
  const BuildInfo build = GetBuildInfo();
  const std::vector<LibraryVersion> communication = dist::CommunicationLibraries();
  return {.git_hash = build.git_hash,
          .git_dirty = build.git_dirty,
          .halflife = build.version,
          .torch = TORCH_VERSION,
          .cuda = VersionOf("CUDA runtime", communication),
          .nccl = VersionOf("NCCL", communication),
          .mpi = VersionOf("MPI library", communication),
          .hdf5 = VersionOf("HDF5", data::DataLibraries())};
}

}  // namespace halflife::train
