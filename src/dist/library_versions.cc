#include "dist/rank_context.h"

#include <mpi.h>
#ifdef HALFLIFE_WITH_CUDA
#include <cuda_runtime_api.h>
#include <nccl.h>
#endif

#include "core/concat.h"

namespace halflife::dist {
namespace {

LibraryVersion Mpi() {
  LibraryVersion mpi{.name = "MPI library"};
#ifdef OMPI_MAJOR_VERSION
  mpi.built =
      Concat("Open MPI ", OMPI_MAJOR_VERSION, ".", OMPI_MINOR_VERSION, ".", OMPI_RELEASE_VERSION);
#endif
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);  // MPI allows this call before MPI_Init
  mpi.loaded = std::string(text, static_cast<size_t>(length));
  mpi.loaded.resize(mpi.loaded.find_first_of(",\n") == std::string::npos
                        ? mpi.loaded.size()
                        : mpi.loaded.find_first_of(",\n"));
  // The text is "Open MPI v4.1.4"; this removes the "v".
  if (mpi.loaded.starts_with("Open MPI v")) mpi.loaded.erase(9, 1);
  return mpi;
}

#ifdef HALFLIFE_WITH_CUDA
std::string CudaText(int version) {
  return version == 0 ? "" : Concat(version / 1000, ".", version % 1000 / 10);
}
std::string NcclText(int version) {
  return version == 0 ? "" : Concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}
#endif

}  // namespace

std::vector<LibraryVersion> CommunicationLibraries() {
  std::vector<LibraryVersion> libraries = {Mpi()};
#ifdef HALFLIFE_WITH_CUDA
  int runtime = 0, driver = 0, nccl = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);  // 0 if there is no driver
  ncclGetVersion(&nccl);
  libraries.push_back({"CUDA runtime", CudaText(CUDART_VERSION), CudaText(runtime)});
  libraries.push_back({"CUDA driver", "", CudaText(driver)});
  libraries.push_back({"NCCL", NcclText(NCCL_VERSION_CODE), NcclText(nccl)});
#endif
  return libraries;
}

}  // namespace halflife::dist
