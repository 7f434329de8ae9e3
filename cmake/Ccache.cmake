# Compiles through ccache where it is installed. With hash_dir off and paths below the repository
# taken as relative ones, build trees and clones share their objects.
# Without the sloppiness it refuses to know what was compiled with a precompiled header: such a file
# may have changed since with the same time stamp, and may use __TIME__, which nothing here does.
find_program(HALFLIFE_CCACHE ccache)
if(HALFLIFE_CCACHE)
  set(sloppiness pch_defines,time_macros,include_file_mtime,include_file_ctime)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
    CCACHE_SLOPPINESS=${sloppiness} ${HALFLIFE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
message(STATUS "ccache: ${HALFLIFE_CCACHE}")
