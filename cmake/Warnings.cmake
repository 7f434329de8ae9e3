# Compile options of every hl_* target, among them warnings as errors. Third-party code does not get them.
add_library(halflife_options INTERFACE)
target_compile_options(halflife_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror>)
# GCC starts to collect garbage at 128 MB by default. With a threshold of 1 GB a large unit compiles in an
# eighth less time and takes a fifth more memory (1.3 instead of 1.0 GB).
target_compile_options(halflife_options INTERFACE
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<COMPILE_LANGUAGE:CXX>>:--param=ggc-min-heapsize=1000000>)
target_include_directories(halflife_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(HALFLIFE_FAULT_POINTS)
  target_compile_definitions(halflife_options INTERFACE HALFLIFE_FAULT_POINTS)
endif()
if(HALFLIFE_SANITIZE)
  target_compile_options(halflife_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1>
    # gcc 12 reports false uninitialised reads in instrumented code of the standard library.
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  target_link_options(halflife_options INTERFACE -fsanitize=address,undefined)
endif()
