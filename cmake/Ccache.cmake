# Compiles through ccache if it is installed. Build trees and clones share objects, because the current
# directory is not hashed and paths below the repository are hashed as relative paths.
# Without this sloppiness ccache does not cache sources that use a precompiled header, as the header could
# change within one time stamp or use __TIME__. Neither happens here.
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
