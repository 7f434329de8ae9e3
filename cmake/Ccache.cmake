# Compiles through ccache where it is installed. hash_dir off: two build trees share their objects.
find_program(HALFLIFE_CCACHE ccache)
if(HALFLIFE_CCACHE)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1 ${HALFLIFE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
message(STATUS "ccache: ${HALFLIFE_CCACHE}")
