# Finds NCCL and defines Nccl::Nccl. Searches the copy in the Python wheel (site-packages/nvidia/nccl)
# first, and then the CUDA toolkit.
get_filename_component(site_packages ${LibTorch_ROOT} DIRECTORY)
find_path(Nccl_INCLUDE_DIR nccl.h
  HINTS ${site_packages}/nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include)
find_library(Nccl_LIBRARY NAMES libnccl.so.2 nccl NAMES_PER_DIR
  HINTS ${site_packages}/nvidia/nccl/lib ${CUDAToolkit_LIBRARY_DIR} /usr/local/cuda/lib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Nccl REQUIRED_VARS Nccl_LIBRARY Nccl_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run launch/setup --cuda, or install NCCL's headers and library")
if(Nccl_FOUND AND NOT TARGET Nccl::Nccl)
  add_library(Nccl::Nccl UNKNOWN IMPORTED)
  set_target_properties(Nccl::Nccl PROPERTIES
    IMPORTED_LOCATION ${Nccl_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${Nccl_INCLUDE_DIR})
endif()
