# LibTorch's headers, parsed once for the areas that include them: of the 5 s that a mixer takes to
# compile, more than 3 are theirs. For the standard library's and JSON's alone it does not pay, as
# nearly all of the time goes to the code that follows. A set of compile options takes 16 s and 400 MB
# on disk. A file still includes what it uses: the presets cuda and asan do without precompiled
# headers, and fail where one does not.
option(HALFLIFE_PRECOMPILED_HEADERS "Parse LibTorch's headers once for the areas that use them" ON)
if(NOT HALFLIFE_PRECOMPILED_HEADERS)
  return()
endif()

set(torch_headers
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
target_precompile_headers(hl_precompiled PRIVATE ${torch_headers} <nlohmann/json.hpp>)
foreach(area model train infer eval interop cli)
  target_precompile_headers(hl_${area} REUSE_FROM hl_precompiled)
endforeach()

# It has options of its own.
target_precompile_headers(hl_kernels PRIVATE ${torch_headers})
