# For the scripts overlay.cmake of tests that build the program with parts from outside the tree. They
# are run with -DSOURCE_DIR= and -DOUT=, and write changed copies of schemas and lists below OUT.

# Adds `line` below the text `after`, which must be in the variable named by `text`.
function(add_line text after line)
  string(FIND "${${text}}" "${after}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "the ${text} has no '${after}'")
  endif()
  string(REPLACE "${after}" "${after}${line}\n" ${text} "${${text}}")
  set(${text} "${${text}}" PARENT_SCOPE)
endfunction()

# Adds `line` to the end of src/`list`.
function(add_to_list list line)
  file(READ ${SOURCE_DIR}/src/${list} lines)
  file(WRITE ${OUT}/src/${list} "${lines}${line}\n")
endfunction()
