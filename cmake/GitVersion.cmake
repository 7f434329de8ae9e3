# Runs at every build (cmake -P). Fills version.cc.in and rewrites the result only if it changed.
#   -DSOURCE_DIR= -DINPUT= -DOUTPUT= -DHALFLIFE_VERSION=
execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse --short=12 HEAD
  OUTPUT_VARIABLE GIT_HASH OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git -C ${SOURCE_DIR} diff --quiet HEAD RESULT_VARIABLE differs ERROR_QUIET)
set(GIT_DIRTY false)
if(GIT_HASH AND NOT differs EQUAL 0)
  set(GIT_DIRTY true)
endif()
configure_file(${INPUT} ${OUTPUT} @ONLY)
