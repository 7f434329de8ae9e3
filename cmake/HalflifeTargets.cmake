# CPU kernel loops, recognised by the names of their sources.
set(HALFLIFE_LOOPS "/kernels/(.*/)?([a-z0-9_]*_cpu\\.cc|cpu/.*|[a-z0-9_]*_isa\\.cc)$")

# Unity build: the sources of a folder are one translation unit, so their headers are parsed once. Small
# neighbouring folders share a unit. The sources of a unit share one anonymous namespace, so two of them
# must not define the same name differently. -DHALFLIFE_UNITY_BUILD=OFF compiles each source separately, as
# the preset asan does; a small change then builds faster. CPU kernel loops are always separate: compiling
# their code dominates.
option(HALFLIFE_UNITY_BUILD "Compile the sources of a folder as one" ON)
function(hl_compile_folders_as_one target sources)
  if(HALFLIFE_UNITY_BUILD)
    # Deferred to the end of the directory, when the properties of its sources are set.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL hl_join_folders [[${target}]] [[${sources}]])")
  endif()
endfunction()

# The minimum number of sources of a unit (whole folders are added until it is reached). With fewer sources
# most of the time goes to headers; with more, a small change recompiles too much.
set(HALFLIFE_SOURCES_OF_UNIT 10)

# Adds a unit to `target` that includes `sources` (paths below src). It is named after the first and the
# last of `folders`.
function(hl_add_unit target folders sources)
  list(POP_FRONT folders name)
  if(folders)
    list(POP_BACK folders last)
    string(APPEND name "_to_${last}")
  endif()
  string(REPLACE "/" "_" name ${name})
  set(content "")
  foreach(path IN LISTS sources)
    string(APPEND content "#include \"${path}\"\n")
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/${path} PROPERTIES HEADER_FILE_ONLY ON)
  endforeach()
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/folders/${name}.cc)
  file(CONFIGURE OUTPUT ${unit} CONTENT "${content}")
  target_sources(${target} PRIVATE ${unit})
endfunction()

# CMake's own UNITY_BUILD is not used: its files contain the absolute path of the repository, so ccache
# would not share objects between clones.
function(hl_join_folders target sources)
  list(FILTER sources EXCLUDE REGEX "${HALFLIFE_LOOPS}|\\.cu$")
  set(folders)
  foreach(source IN LISTS sources)
    set(alone NO)
    foreach(property SKIP_UNITY_BUILD_INCLUSION COMPILE_OPTIONS COMPILE_DEFINITIONS)
      get_source_file_property(value ${source} ${property})
      if(value)
        set(alone YES)
      endif()
    endforeach()
    if(NOT alone)
      file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR}/src ${source})
      get_filename_component(folder ${path} DIRECTORY)
      list(APPEND folders ${folder})
      list(APPEND sources_of_${folder} ${path})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  set(joined)
  set(names)
  foreach(folder IN LISTS folders)
    list(APPEND joined ${sources_of_${folder}})
    list(APPEND names ${folder})
    list(LENGTH joined count)
    list(GET folders -1 last)
    if(count GREATER_EQUAL ${HALFLIFE_SOURCES_OF_UNIT} OR folder STREQUAL last)
      hl_add_unit(${target} "${names}" "${joined}")
      set(joined)
      set(names)
    endif()
  endforeach()
  # In a unit, a type with a member from an anonymous namespace looks as if a header defined it.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endfunction()

# hl_area(NAME core DEPS ... [EXCLUDE regex ...]): the static library hl_core from every .cc (and .cu with
# CUDA) below src/core.
function(hl_area)
  cmake_parse_arguments(A "" "NAME" "DEPS;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  foreach(pattern ${A_EXCLUDE})
    list(FILTER sources EXCLUDE REGEX ${pattern})
  endforeach()
  if(HALFLIFE_WITH_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
    list(APPEND sources ${cuda_sources})
  endif()
  add_library(hl_${A_NAME} STATIC ${sources})
  target_link_libraries(hl_${A_NAME} PUBLIC halflife_options ${A_DEPS})
  hl_compile_folders_as_one(hl_${A_NAME} "${sources}")
endfunction()

# HALFLIFE_QUICK_TO_COMPILE is for code that takes longer to compile than to run: tests, the command line,
# and areas that spend their time in libraries. With GCC, -Og takes three quarters of the compile time of
# -O1. HALFLIFE_BETWEEN_KERNELS is for code that runs between kernels, because a decoding step takes 8 %
# longer with -Og. Neither changes any result bit, because these areas are compiled without fused
# multiply-adds.
set(release_cxx $<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>)
set(HALFLIFE_QUICK_TO_COMPILE $<${release_cxx}:$<IF:$<CXX_COMPILER_ID:GNU>,-Og,-O1>>)
set(HALFLIFE_BETWEEN_KERNELS $<${release_cxx}:-O1>)

# Time limits in seconds, by label: about five times the time of the slowest test on two slow, busy cores.
# They detect hangs, not slow machines. No test has its own limit.
set(HALFLIFE_TIMEOUT_unit 1500)
set(HALFLIFE_TIMEOUT_emulated 1800)
set(HALFLIFE_TIMEOUT_mpi 1500)
set(HALFLIFE_TIMEOUT_gpu 1500)
set(HALFLIFE_TIMEOUT_e2e 3000)
set(HALFLIFE_TIMEOUT_slurm 3000)

# CTest starts tests with a higher COST first. Long ones start early, so that all cores are busy until the end.
set(HALFLIFE_COST_unit 0)
set(HALFLIFE_COST_gpu 0)
set(HALFLIFE_COST_emulated 300)
set(HALFLIFE_COST_e2e 500)
set(HALFLIFE_COST_mpi 1000)
set(HALFLIFE_COST_slurm 1000)

# hl_waiting_tests(NAME...): tests that wait most of the time, for timers or for other processes. One of them
# runs at a time, from the beginning, and tests that compute run next to it.
function(hl_waiting_tests)
  set_tests_properties(${ARGN} PROPERTIES RESOURCE_LOCK waiting COST 1000)
endfunction()

# hl_test(NAME philox_test SOURCES philox_test.cc LIBS hl_core [LABEL unit] [EVERY_INSTRUCTION_SET]
#   [STANDALONE]): a CTest entry that runs the GoogleTest tests of SOURCES.
#
# All tests of one area (a folder below tests/) with one label are linked into one program,
# build/PRESET/tests/AREA/AREA_tests (AREA_LABEL_tests for other labels than unit), because linking a
# program per file took longer than compiling the files. The program runs the tests of one source with
# --source=PATH. EVERY_INSTRUCTION_SET runs each test once per CPU instruction set of this machine, in
# AREA_cpu_tests. A STANDALONE test is a separate program, named NAME. Tests labelled gpu are always
# separate programs; the target gpu_tests builds them.
function(hl_test)
  cmake_parse_arguments(T "EVERY_INSTRUCTION_SET;STANDALONE" "NAME;LABEL" "SOURCES;LIBS" ${ARGN})
  if(NOT T_SOURCES)
    set(T_SOURCES ${T_NAME}.cc)
  endif()
  if(NOT T_LABEL)
    set(T_LABEL unit)
  endif()
  if(T_STANDALONE OR T_LABEL STREQUAL "gpu")
    add_executable(${T_NAME} ${T_SOURCES})
    target_link_libraries(${T_NAME} PRIVATE hl_test_main)
    hl_test_program(${T_NAME} ${T_LIBS})
    set(command ${T_NAME})
    if(T_LABEL STREQUAL "gpu")
      add_dependencies(gpu_tests ${T_NAME})
    endif()
  else()
    hl_join_test(program sources)
    set(command ${program} ${sources})
  endif()
  add_test(NAME ${T_NAME} COMMAND ${command})
  set_tests_properties(${T_NAME} PROPERTIES LABELS ${T_LABEL} TIMEOUT ${HALFLIFE_TIMEOUT_${T_LABEL}}
    COST ${HALFLIFE_COST_${T_LABEL}} ENVIRONMENT "OMP_NUM_THREADS=1;ASAN_OPTIONS=detect_leaks=0")
endfunction()

# The compile and link options of every test program.
function(hl_test_program program)
  target_link_libraries(${program} PRIVATE ${ARGN} hl_test_support GTest::gtest GTest::gmock)
  target_include_directories(${program} PRIVATE ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR})
  target_compile_options(${program} PRIVATE ${HALFLIFE_QUICK_TO_COMPILE})
  hl_precompile_test(${program} ${ARGN})
endfunction()

# Adds T_SOURCES and T_LIBS to their area's program, and returns the program and the --source arguments.
macro(hl_join_test program sources)
  file(RELATIVE_PATH area ${CMAKE_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR})
  string(REGEX REPLACE "/.*" "" area ${area})
  set(${program} ${area}_tests)
  set(main hl_test_main)
  if(T_EVERY_INSTRUCTION_SET)
    set(${program} ${area}_cpu_tests)
    set(main hl_cpu_test_main)
  elseif(NOT T_LABEL STREQUAL "unit")
    set(${program} ${area}_${T_LABEL}_tests)
  endif()
  if(NOT TARGET ${${program}})
    add_executable(${${program}})
    target_link_libraries(${${program}} PRIVATE ${main})
    set_target_properties(${${program}} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/${area})
    hl_test_program(${${program}} ${T_LIBS})
  endif()
  target_link_libraries(${${program}} PRIVATE ${T_LIBS})
  get_target_property(present ${${program}} SOURCES)
  foreach(source ${T_SOURCES})
    get_filename_component(path ${source} ABSOLUTE)
    if(NOT path IN_LIST present)  # two tests may share a source
      target_sources(${${program}} PRIVATE ${path})
    endif()
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${path})
    list(APPEND ${sources} --source=${path})
  endforeach()
endmacro()

# hl_mpi_test(NAME bucket_mpi_test RANKS 2 4 LIBS hl_dist [LABEL mpi]): a program with its own main, which
# CTest runs under mpirun once per number of ranks. Those with the label gpu may share a GPU.
function(hl_mpi_test)
  cmake_parse_arguments(T "" "NAME;LABEL" "SOURCES;LIBS;RANKS" ${ARGN})
  if(NOT T_SOURCES)
    set(T_SOURCES ${T_NAME}.cc)
  endif()
  if(NOT T_LABEL)
    set(T_LABEL mpi)
  endif()
  add_executable(${T_NAME} ${T_SOURCES})
  hl_test_program(${T_NAME} ${T_LIBS})
  if(T_LABEL STREQUAL "gpu")
    add_dependencies(gpu_tests ${T_NAME})
  endif()
  # Each test has its own session directory for mpirun: in a shared one, a run that ends removes files that
  # another run is about to use.
  foreach(ranks ${T_RANKS})
    add_test(NAME ${T_NAME}_${ranks}
      COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} --oversubscribe --bind-to none $<TARGET_FILE:${T_NAME}> --ranks=${ranks})
    set_tests_properties(${T_NAME}_${ranks} PROPERTIES LABELS ${T_LABEL} TIMEOUT ${HALFLIFE_TIMEOUT_${T_LABEL}} SKIP_RETURN_CODE 77
      ENVIRONMENT "OMP_NUM_THREADS=1;HALFLIFE_SHARE_GPU=1;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;ASAN_OPTIONS=detect_leaks=0"
      ENVIRONMENT_MODIFICATION "OMPI_MCA_orte_tmpdir_base=set:${CMAKE_CURRENT_BINARY_DIR}/${T_NAME}_${ranks}.tmp")
    hl_waiting_tests(${T_NAME}_${ranks})
  endforeach()
endfunction()
