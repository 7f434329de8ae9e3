# Precompiles LibTorch's headers for the areas that include them. They take more than 3 of the 5 s that a
# mixer takes to compile. Precompiling only the headers of the standard library and of JSON does not save
# enough time to be worthwhile. Each set of compile options costs 12 s and 300 MB on disk. A file must still
# include what it uses, because the preset asan compiles each file without precompiled headers.
option(HALFLIFE_PRECOMPILED_HEADERS "Parse LibTorch's headers once for the areas that use them" ON)

# Sets `result` to YES if a target that links the given libraries has LibTorch in its include path.
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

# hl_precompile_test(TARGET LIBRARIES ...): tests that reach LibTorch share a precompiled header with
# GoogleTest's headers, and compile in 3 s instead of 8. The header belongs to an executable, because tests
# are executables.
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

# One precompiled header for all areas with the same compile options. It has a separate target, because
# all its users must have the same definitions.
set(source ${CMAKE_CURRENT_BINARY_DIR}/precompiled.cc)
file(CONFIGURE OUTPUT ${source} CONTENT "")
add_library(hl_precompiled OBJECT ${source})
target_link_libraries(hl_precompiled PRIVATE halflife_options LibTorch::LibTorch)
target_compile_options(hl_precompiled PRIVATE ${HALFLIFE_QUICK_TO_COMPILE})
target_precompile_headers(hl_precompiled PRIVATE ${HALFLIFE_TORCH_HEADERS} <nlohmann/json.hpp>)
foreach(area train eval interop sweep cli)
  target_precompile_headers(hl_${area} REUSE_FROM hl_precompiled)
endforeach()
# A second one for the areas that are compiled with HALFLIFE_BETWEEN_KERNELS.
target_precompile_headers(hl_ops PRIVATE ${HALFLIFE_TORCH_HEADERS} <nlohmann/json.hpp>)
foreach(area model infer)
  target_precompile_headers(hl_${area} REUSE_FROM hl_ops)
endforeach()
