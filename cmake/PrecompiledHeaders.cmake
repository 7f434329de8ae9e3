# LibTorch's headers, parsed once for the areas that include them: of the 5 s that a mixer takes to
# compile, more than 3 are theirs. For the standard library's and JSON's alone it does not pay, as
# nearly all of the time goes to the code that follows. A set of compile options takes 12 s and 300 MB
# on disk. A file still includes what it uses: the preset asan, which compiles each by itself and
# without precompiled headers, fails where one does not; cuda does without them for sources.
option(HALFLIFE_PRECOMPILED_HEADERS "Parse LibTorch's headers once for the areas that use them" ON)

# Whether LibTorch's headers are in the include path of what links `libraries`.
function(hl_reaches_libtorch result)
  set(${result} NO PARENT_SCOPE)
  foreach(library ${ARGN})
    set(reaches NO)
    if(library STREQUAL LibTorch::LibTorch)
      set(reaches YES)
    elseif(TARGET ${library})
      get_target_property(libraries ${library} INTERFACE_LINK_LIBRARIES)
      if(libraries)
        hl_reaches_libtorch(reaches ${libraries})
      endif()
    endif()
    if(reaches)
      set(${result} YES PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# hl_precompile_test(TARGET LIBRARIES ...): one precompiled header for all tests that reach LibTorch,
# with GoogleTest's: they take 3 s to compile in place of 8. An executable's, as tests are.
function(hl_precompile_test target)
  hl_reaches_libtorch(reaches ${ARGN})
  if(NOT HALFLIFE_PRECOMPILED_HEADERS OR NOT reaches)
    return()
  endif()
  if(NOT TARGET hl_precompiled_tests)
    set(source ${CMAKE_BINARY_DIR}/precompiled_tests.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}\n")
    add_executable(hl_precompiled_tests ${source})
    target_link_libraries(hl_precompiled_tests PRIVATE halflife_options LibTorch::LibTorch GTest::gtest GTest::gmock)
    target_compile_options(hl_precompiled_tests PRIVATE ${HALFLIFE_QUICK_TO_COMPILE})
    target_precompile_headers(hl_precompiled_tests PRIVATE ${HALFLIFE_TORCH_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM hl_precompiled_tests)
endfunction()

if(NOT HALFLIFE_PRECOMPILED_HEADERS)
  return()
endif()

set(HALFLIFE_TORCH_HEADERS
  <algorithm> <cmath> <filesystem> <functional> <map> <memory> <optional> <span> <sstream> <string>
  <vector> <ATen/Parallel.h> <ATen/TensorOperators.h> <ATen/core/Tensor.h> <ATen/ops/empty.h>
  <ATen/ops/zeros.h>)

# One for all areas that are compiled with the same options. It has a target of its own, as what is
# defined for it must be defined for all.
set(source ${CMAKE_CURRENT_BINARY_DIR}/precompiled.cc)
file(CONFIGURE OUTPUT ${source} CONTENT "")
add_library(hl_precompiled OBJECT ${source})
target_link_libraries(hl_precompiled PRIVATE halflife_options LibTorch::LibTorch)
target_compile_options(hl_precompiled PRIVATE ${HALFLIFE_QUICK_TO_COMPILE})
target_precompile_headers(hl_precompiled PRIVATE ${HALFLIFE_TORCH_HEADERS} <nlohmann/json.hpp>)
foreach(area train eval interop sweep cli)
  target_precompile_headers(hl_${area} REUSE_FROM hl_precompiled)
endforeach()
# Another one for those that are compiled for what runs between kernels.
target_precompile_headers(hl_ops PRIVATE ${HALFLIFE_TORCH_HEADERS} <nlohmann/json.hpp>)
foreach(area model infer)
  target_precompile_headers(hl_${area} REUSE_FROM hl_ops)
endforeach()
