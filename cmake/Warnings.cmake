# Warnings are errors in our own code only: every hl_* target links halflife_options.
add_library(halflife_options INTERFACE)
target_compile_options(halflife_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror>)
# From 128 MB on GCC goes through its memory for what it may free: with a gigabyte to begin at, a large
# unit takes an eighth less time and a fifth more memory (1.3 for 1.0 GB).
target_compile_options(halflife_options INTERFACE
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<COMPILE_LANGUAGE:CXX>>:--param=ggc-min-heapsize=1000000>)
target_include_directories(halflife_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(HALFLIFE_FAULT_POINTS)
  target_compile_definitions(halflife_options INTERFACE HALFLIFE_FAULT_POINTS)
endif()
if(HALFLIFE_SANITIZE)
  target_compile_options(halflife_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1>
    # gcc 12 takes the standard library's instrumented code for uninitialised reads
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  target_link_options(halflife_options INTERFACE -fsanitize=address,undefined)
endif()
