# Loops for the processor: by the names of their sources.
set(HALFLIFE_LOOPS "/kernels/(.*/)?([a-z0-9_]*_cpu\\.cc|cpu\\.cc|cpu/.*|[a-z_]*_avx[0-9]+\\.cc)$")

# Compiles the sources of a folder as one, which parses a header once for all of them; small folders
# that follow each other share a unit. They therefore share their anonymous namespace: what two of them
# name alike is one thing or wants two names. -DHALFLIFE_UNITY_BUILD=OFF compiles each source by itself,
# as the preset asan does; a small change is then built faster. Loops for the processor stay by
# themselves: their time goes to the code, and some are compiled for one instruction set.
option(HALFLIFE_UNITY_BUILD "Compile the sources of a folder as one" ON)
function(hl_compile_folders_as_one target sources)
  if(HALFLIFE_UNITY_BUILD)
    # At the end of the directory, where the properties of its sources are known.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL hl_join_folders [[${target}]] [[${sources}]])")
  endif()
endfunction()

# So many sources or more, with what is left of the last folder: fewer, and most of a unit's time goes
# to its headers; more, and a change waits for too much else.
set(HALFLIFE_SOURCES_OF_UNIT 10)

# A unit of `folders`, named by the first and last of them, that includes `sources`, below src.
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

# Not by CMake's UNITY_BUILD: its files hold the repository's path, so that ccache knows none of them
# in another clone.
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
  # A type may hold one of its own source's anonymous namespace, which looks like a header's here.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endfunction()

# hl_area(NAME core DEPS ...): one static library per area from every .cc (and .cu with CUDA) below
# src/<area>.
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

# For what takes longer to compile than to run: tests, the command line, and the areas whose time goes
# to libraries. With GCC -Og takes three quarters of -O1's time. For what runs between kernels: a
# decoding step takes 8 % longer with -Og. No bit depends on either: nothing in these areas is compiled
# for fused multiply-adds.
set(release_cxx $<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>)
set(HALFLIFE_QUICK_TO_COMPILE $<${release_cxx}:$<IF:$<CXX_COMPILER_ID:GNU>,-Og,-O1>>)
set(HALFLIFE_BETWEEN_KERNELS $<${release_cxx}:-O1>)

# Seconds after which a test is taken to hang, by its label: some five times what the longest of
# them takes on two slow cores that have other work. They guard against a hang, not against a slow
# machine: no test has a limit of its own.
set(HALFLIFE_TIMEOUT_unit 1500)
set(HALFLIFE_TIMEOUT_emulated 1800)
set(HALFLIFE_TIMEOUT_mpi 1500)
set(HALFLIFE_TIMEOUT_gpu 1500)
set(HALFLIFE_TIMEOUT_e2e 3000)
set(HALFLIFE_TIMEOUT_slurm 3000)

# hl_test(NAME rng_test SOURCES rng_test.cc LIBS hl_core [LABEL unit] [EVERY_INSTRUCTION_SET]
#   [STANDALONE]): a CTest entry that runs the GoogleTest tests of SOURCES.
#
# All tests of one area (a folder below tests/) with one label are linked into one program,
# build/PRESET/tests/AREA/AREA_tests (AREA_LABEL_tests for other labels than unit), because linking a
# program per file took longer than compiling the files. The program runs the tests of one source with
# --source=PATH. EVERY_INSTRUCTION_SET runs each test once per CPU instruction set of this machine, in
# AREA_cpu_tests. A STANDALONE test is a program of its own, named NAME; tests labelled gpu always are,
# and the target gpu_tests builds them.
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
    ENVIRONMENT "OMP_NUM_THREADS=1;ASAN_OPTIONS=detect_leaks=0")
endfunction()

# What every test program is compiled and linked with.
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

# hl_mpi_test(NAME bucket_mpi_test RANKS 2 4 LIBS hl_dist): the binary brings its own main (MPI) and
# runs once per count.
function(hl_mpi_test)
  cmake_parse_arguments(T "" "NAME" "SOURCES;LIBS;RANKS" ${ARGN})
  if(NOT T_SOURCES)
    set(T_SOURCES ${T_NAME}.cc)
  endif()
  add_executable(${T_NAME} ${T_SOURCES})
  hl_test_program(${T_NAME} ${T_LIBS})
  # A directory for mpirun's session each: in a shared one, a run that ends removes what another is
  # entering.
  foreach(ranks ${T_RANKS})
    add_test(NAME ${T_NAME}_${ranks}
      COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} --oversubscribe --bind-to none $<TARGET_FILE:${T_NAME}> --ranks=${ranks})
    set_tests_properties(${T_NAME}_${ranks} PROPERTIES LABELS mpi TIMEOUT ${HALFLIFE_TIMEOUT_mpi} PROCESSORS 2
      ENVIRONMENT "OMP_NUM_THREADS=1;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;ASAN_OPTIONS=detect_leaks=0"
      ENVIRONMENT_MODIFICATION "OMPI_MCA_orte_tmpdir_base=set:${CMAKE_CURRENT_BINARY_DIR}/${T_NAME}_${ranks}.tmp")
  endforeach()
endfunction()
