# Compiles through ccache if it is installed.
find_program(HALFLIFE_CCACHE ccache)
if(HALFLIFE_CCACHE)
  set(launcher ${CMAKE_CURRENT_LIST_DIR}/ccache.sh ${HALFLIFE_CCACHE} ${CMAKE_SOURCE_DIR})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
message(STATUS "ccache: ${HALFLIFE_CCACHE}")
