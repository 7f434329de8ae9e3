# Finds LibTorch in the `torch` wheel. The wheel's own find_package(Torch) is not used: it requires a CUDA
# toolkit, ignores CMAKE_CUDA_ARCHITECTURES and fails with CMake 3.25.
#
#   LibTorch::LibTorch   headers, libtorch_cpu and libc10; with CUDA also libtorch_cuda and
#                        libc10_cuda
#   LibTorch::OpenMP     -fopenmp with the wheel's own runtime library, so that a process has only one
#   LibTorch_VERSION
#
# Searches -DHALFLIFE_TORCH_DIR=<.../site-packages/torch> first, and then <source>/.venv, which
# launch/setup creates.
#
# The headers are searched last (-idirafter). The wheel contains its own fmt/ and google/protobuf/,
# which would break spdlog and every .pb.h if they were found first.
file(GLOB venv_torch ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h
  PATHS ${HALFLIFE_TORCH_DIR}/include NO_DEFAULT_PATH)
foreach(dir ${venv_torch})
  find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h PATHS ${dir}/include NO_DEFAULT_PATH)
endforeach()
if(LibTorch_INCLUDE_DIR)
  get_filename_component(LibTorch_ROOT ${LibTorch_INCLUDE_DIR} DIRECTORY)
  set(LibTorch_LIBRARY_DIR ${LibTorch_ROOT}/lib)
  if(EXISTS ${LibTorch_ROOT}/version.py)
    file(STRINGS ${LibTorch_ROOT}/version.py version_line REGEX "^__version__")
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" LibTorch_VERSION "${version_line}")
  endif()
endif()

# Cross entropy on a GPU adds products of bf16 matrices to fp32 sums. Older wheels lack these calls or
# reject an fp32 sum. This check reports it at configure time instead of at a run's first loss.
if(HALFLIFE_WITH_CUDA AND LibTorch_INCLUDE_DIR)
  foreach(product mm addmm)
    set(header ${LibTorch_INCLUDE_DIR}/ATen/ops/${product}_ops.h)
    set(declared "")
    if(EXISTS ${header})
      file(STRINGS ${header} declared REGEX "struct TORCH_API ${product}_dtype_out ")
    endif()
    if(NOT declared OR LibTorch_VERSION VERSION_LESS 2.11)
      message(FATAL_ERROR "LibTorch ${LibTorch_VERSION} in ${LibTorch_ROOT} is too old for a CUDA build, which adds "
        "products of bf16 matrices to fp32 sums (at::${product}_out with an output dtype). Run launch/setup to install "
        "LibTorch 2.11.0, pass its folder as -DHALFLIFE_TORCH_DIR=<site-packages>/torch, or disable CUDA with "
        "-DHALFLIFE_CUDA=OFF.")
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_INCLUDE_DIR LibTorch_LIBRARY_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "run launch/setup, or pass -DHALFLIFE_TORCH_DIR=<site-packages>/torch")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  file(GLOB LibTorch_OPENMP_LIBRARY ${LibTorch_LIBRARY_DIR}/libgomp*.so*)
  add_library(LibTorch::OpenMP INTERFACE IMPORTED)
  target_compile_options(LibTorch::OpenMP INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
  target_link_libraries(LibTorch::OpenMP INTERFACE ${LibTorch_OPENMP_LIBRARY})
  target_link_options(LibTorch::OpenMP INTERFACE -Wl,-rpath,${LibTorch_LIBRARY_DIR})
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  # at::parallel_for is a header template, which runs on one thread if it is compiled without OpenMP.
  target_link_libraries(LibTorch::LibTorch INTERFACE LibTorch::OpenMP)
  target_compile_options(LibTorch::LibTorch INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter ${LibTorch_INCLUDE_DIR}>"
    "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include>")
  # Use one header per operator. Otherwise TensorOperators.h includes all of them, which takes 2 of the
  # 8 s of compiling a file.
  target_compile_definitions(LibTorch::LibTorch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:AT_PER_OPERATOR_HEADERS>)
  if(HALFLIFE_WITH_CUDA)
    target_link_libraries(LibTorch::LibTorch INTERFACE
      ${LibTorch_LIBRARY_DIR}/libtorch_cpu.so ${LibTorch_LIBRARY_DIR}/libc10.so
      -Wl,--no-as-needed ${LibTorch_LIBRARY_DIR}/libtorch.so ${LibTorch_LIBRARY_DIR}/libtorch_cuda.so
      ${LibTorch_LIBRARY_DIR}/libc10_cuda.so -Wl,--as-needed CUDA::cudart)
  else()
    target_link_libraries(LibTorch::LibTorch INTERFACE
      ${LibTorch_LIBRARY_DIR}/libtorch_cpu.so ${LibTorch_LIBRARY_DIR}/libc10.so)
  endif()
  # The wheel's shared libraries find each other by rpath, but the linker would also try to resolve them.
  target_link_options(LibTorch::LibTorch INTERFACE -Wl,-rpath,${LibTorch_LIBRARY_DIR} -Wl,--allow-shlib-undefined)
endif()
