# Tests that run CUDA kernels on the CPU: g++ compiles the .cu sources with HL_EMULATE, and the emulator in
# tools/cuda_emulator runs them.
#
#   hl_emulated_test(NAME chunk_scan_emulated_test
#     KERNELS ${CMAKE_SOURCE_DIR}/src/kernels/decay_attention/cuda/chunk_scan.cu
#     SOURCES chunk_scan_emulated_test.cc)
#
# builds chunk_scan_emulated_test_plain and, with HALFLIFE_SANITIZED_EMULATION, ..._asan and ..._tsan. Each
# program has a CTest entry per order in which threads run. The label is "emulated", or "sanitized" for the
# kinds with a sanitizer and the orders that run with them.
#
# - SOURCES contain GoogleTest tests without a main.
# - LIBS are linked without a sanitizer. List a .cc file that a sanitizer should check among SOURCES.
# - PARTS 4 splits each entry into four, *_1of4 to *_4of4, each with every fourth test, so that all cores of
#   a machine finish at about the same time.
# - HL_EMULATED_TSAN or HL_EMULATED_ASAN is defined in the kind of that name, for tests of findings that
#   only a sanitizer reports.
#
# A directory that calls this function compiles the .cu files as C++, so it must not also compile them with
# nvcc.
#
# The sanitized kinds take two thirds of the build and test time of the emulated tests. They find what the
# plain kind cannot find: races between threads in any order, and accesses beyond an allocation. They run
# nightly, and before a kernel change lands: tests/run --label sanitized.
option(HALFLIFE_SANITIZED_EMULATION "Build the emulated CUDA tests with AddressSanitizer and ThreadSanitizer, too" OFF)
option(HALFLIFE_EMULATED_TESTS "Tests of CUDA sources on the CPU; the cuda preset leaves them to the cpu preset" ON)
set(HALFLIFE_EMULATION_FLAGS_plain -O2)
# -g1: sanitizer reports need functions and line numbers only. Full debug information takes a third longer.
set(HALFLIFE_EMULATION_FLAGS_asan -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined
  -fno-omit-frame-pointer)
set(HALFLIFE_EMULATION_FLAGS_tsan -O1 -g1 -fsanitize=thread)
set(HALFLIFE_EMULATION_LINK_plain "")
# The plain kind's kernels call the tracker's functions (tools/cuda_emulator/tracker.cc) before each memory
# access, and report misaligned accesses. The remaining flags prevent GCC from replacing loops with memset,
# which would hide stores from the tracker.
set(HALFLIFE_TRACKED_KERNELS -fsanitize=thread --param=tsan-instrument-func-entry-exit=0
  -fno-tree-loop-distribute-patterns -fsanitize=alignment -fno-sanitize-recover=alignment)
set(HALFLIFE_EMULATION_LINK_asan -fsanitize=address,undefined)
set(HALFLIFE_EMULATION_LINK_tsan -fsanitize=thread)

# With HALFLIFE_SANITIZE all libraries use AddressSanitizer, so no other kind can link them.
set(HALFLIFE_EMULATION_KINDS plain)
if(HALFLIFE_SANITIZED_EMULATION)
  list(APPEND HALFLIFE_EMULATION_KINDS asan tsan)
endif()
if(HALFLIFE_SANITIZE)
  set(HALFLIFE_EMULATION_KINDS asan)
endif()

# The headers of CUDA's vector types and bf16, which g++ can compile. They come from the CUDA wheels that
# LibTorch depends on, or from a CUDA toolkit.
get_filename_component(emulation_site_packages ${LibTorch_ROOT} DIRECTORY)
find_path(HALFLIFE_CUDA_TYPES_DIR cuda_bf16.h
  HINTS ${emulation_site_packages}/nvidia/cu13/include ${emulation_site_packages}/nvidia/cuda_runtime/include
        ${CUDAToolkit_INCLUDE_DIRS}
  PATHS /usr/local/cuda/include)
if(NOT HALFLIFE_CUDA_TYPES_DIR)
  message(STATUS "emulated CUDA tests: off, because cuda_bf16.h was not found. Install pip's nvidia-cuda-runtime.")
elseif(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(STATUS "emulated CUDA tests: off, because they need g++ (std::source_location, TSan fibers)")
  set(HALFLIFE_CUDA_TYPES_DIR HALFLIFE_CUDA_TYPES_DIR-NOTFOUND)
endif()

# Include folders and options for every source of a kind. HL_EMULATED_* is defined for kernels and tests,
# not for the emulator.
function(hl_emulation_options target)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/cuda_shim ${CMAKE_SOURCE_DIR}/src
    ${CMAKE_SOURCE_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${HALFLIFE_CUDA_TYPES_DIR})
  target_compile_definitions(${target} PRIVATE HL_EMULATE=1)
  # -Wno-unknown-pragmas: #pragma unroll is specific to nvcc.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers -Wshadow
    -Wnon-virtual-dtor -Woverloaded-virtual -Wno-unknown-pragmas -Werror)
endfunction()

# hl_emu_<kind>: the emulator. ThreadSanitizer must not instrument it, because it would report the
# scheduler's own accesses as races. The exception is access.cc, which does the loads and stores of emulated
# instructions.
function(hl_emulation_runtime kind)
  if(TARGET hl_emu_${kind})
    return()
  endif()
  set(emulator ${CMAKE_SOURCE_DIR}/tools/cuda_emulator)
  file(GLOB sources CONFIGURE_DEPENDS ${emulator}/*.cc)
  list(REMOVE_ITEM sources ${emulator}/access.cc)
  add_library(hl_emu_access_${kind} OBJECT ${emulator}/access.cc)
  hl_emulation_options(hl_emu_access_${kind})
  target_compile_options(hl_emu_access_${kind} PRIVATE ${HALFLIFE_EMULATION_FLAGS_${kind}})
  add_library(hl_emu_${kind} STATIC ${sources} ${CMAKE_SOURCE_DIR}/src/core/error.cc
    $<TARGET_OBJECTS:hl_emu_access_${kind}>)
  hl_emulation_options(hl_emu_${kind})
  if(kind STREQUAL "plain")
    target_compile_definitions(hl_emu_${kind} PRIVATE HL_EMU_TRACK=1)
    target_link_libraries(hl_emu_${kind} PUBLIC ${CMAKE_DL_LIBS})
  endif()
  if(kind STREQUAL "tsan")
    # Without the last option, GCC turns loops into calls of memmove, which ThreadSanitizer intercepts.
    target_compile_options(hl_emu_${kind} PRIVATE -O2 -g1 -fno-tree-loop-distribute-patterns)
    target_compile_definitions(hl_emu_${kind} PRIVATE HL_EMU_TSAN=1)
  else()
    target_compile_options(hl_emu_${kind} PRIVATE ${HALFLIFE_EMULATION_FLAGS_${kind}})
  endif()
  target_link_libraries(hl_emu_${kind} PUBLIC Threads::Threads)
endfunction()

# The orders in which the threads of a block run. The plain kind's tracker finds races in shared memory in any
# order. The plain kind sees a race in global memory only if a reader runs before its writer. In random order
# that happens for about half of the pairs, so the fixed orders, without the tracker, run only with the
# sanitized kinds. AddressSanitizer's findings do not depend on the order. For ThreadSanitizer one order may
# synchronise two threads by chance and so hide a race, so it runs two.
set(HALFLIFE_EMULATION_ORDERS_plain random)
if(HALFLIFE_SANITIZED_EMULATION)
  list(APPEND HALFLIFE_EMULATION_ORDERS_plain forward reverse)
endif()
set(HALFLIFE_EMULATION_ORDERS_asan random)
set(HALFLIFE_EMULATION_ORDERS_tsan forward random)

function(hl_emulated_test)
  cmake_parse_arguments(E "" "NAME;PARTS" "KERNELS;SOURCES;LIBS" ${ARGN})
  if(NOT HALFLIFE_CUDA_TYPES_DIR OR NOT HALFLIFE_EMULATED_TESTS)
    return()
  endif()
  if(NOT E_PARTS)
    set(E_PARTS 1)
  endif()
  set_source_files_properties(${E_KERNELS} PROPERTIES LANGUAGE CXX)
  foreach(kind ${HALFLIFE_EMULATION_KINDS})
    hl_emulation_runtime(${kind})
    set(target ${E_NAME}_${kind})
    string(TOUPPER ${kind} upper_kind)
    set(tracked)
    if(kind STREQUAL "plain")
      set(tracked ${E_KERNELS})
      list(FILTER tracked INCLUDE REGEX "\\.cu$")
      add_library(${target}_kernels OBJECT ${tracked})
      hl_emulation_options(${target}_kernels)
      target_compile_definitions(${target}_kernels PRIVATE HL_EMULATED_${upper_kind}=1)
      target_compile_options(${target}_kernels PRIVATE ${HALFLIFE_EMULATION_FLAGS_${kind}}
        ${HALFLIFE_TRACKED_KERNELS})
      target_include_directories(${target}_kernels PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    endif()
    set(others ${E_KERNELS})
    list(REMOVE_ITEM others "" ${tracked})
    add_executable(${target} ${others} ${E_SOURCES} $<$<BOOL:${tracked}>:$<TARGET_OBJECTS:${target}_kernels>>)
    hl_emulation_options(${target})
    target_compile_definitions(${target} PRIVATE HL_EMULATED_${upper_kind}=1)
    target_compile_options(${target} PRIVATE ${HALFLIFE_EMULATION_FLAGS_${kind}})
    target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_options(${target} PRIVATE ${HALFLIFE_EMULATION_LINK_${kind}})
    target_link_libraries(${target} PRIVATE hl_emu_${kind} ${E_LIBS} GTest::gmock GTest::gtest_main)
    foreach(order ${HALFLIFE_EMULATION_ORDERS_${kind}})
      foreach(part RANGE 1 ${E_PARTS})
        set(test ${target}_${order})
        set(environment HL_EMU_ORDER=${order} OMP_NUM_THREADS=1
          ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0)
        if(kind STREQUAL "plain" AND NOT order STREQUAL "random")
          list(APPEND environment HL_EMU_TRACK=0)
        endif()
        if(E_PARTS GREATER 1)
          string(APPEND test _${part}of${E_PARTS})
          math(EXPR shard "${part} - 1")
          list(APPEND environment GTEST_TOTAL_SHARDS=${E_PARTS} GTEST_SHARD_INDEX=${shard})
        endif()
        add_test(NAME ${test} COMMAND ${target})
        set(label emulated)
        if(NOT kind STREQUAL "plain" OR NOT order STREQUAL "random")
          set(label sanitized)
        endif()
        set_tests_properties(${test} PROPERTIES LABELS ${label} TIMEOUT ${HALFLIFE_TIMEOUT_emulated}
          COST ${HALFLIFE_COST_emulated} ENVIRONMENT "${environment}")
      endforeach()
    endforeach()
  endforeach()
endfunction()
