# Runs at build time (cmake -P). Writes copies of the schema and of the list of optimizers to which Lion
# is added, in the way that its author would add it to the repository.
#   -DSOURCE_DIR= -DOUT=
include(${SOURCE_DIR}/tests/support/overlay_functions.cmake)

file(READ ${SOURCE_DIR}/proto/halflife/run_config.proto schema)
add_line(schema "message OptimizerChoice {\n  oneof variant {\n" "    LionOptimizer lion = 1000;")
file(READ ${CMAKE_CURRENT_LIST_DIR}/messages.proto messages)
file(WRITE ${OUT}/proto/halflife/run_config.proto "${schema}${messages}")
add_to_list(optim/optimizers.inc "HL_OPTIMIZER(LionKind)")
