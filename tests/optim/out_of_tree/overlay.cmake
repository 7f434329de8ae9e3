# Run at build time (cmake -P): the schema and the list of optimizers with Muon added, as its author
# would add it to the tree.
#   -DSOURCE_DIR= -DOUT=
set(variants "message OptimizerChoice {\n  oneof variant {\n")
file(READ ${SOURCE_DIR}/proto/halflife/run_config.proto schema)
string(FIND "${schema}" "${variants}" place)
if(place EQUAL -1)
  message(FATAL_ERROR "run_config.proto has no '${variants}'")
endif()
string(REPLACE "${variants}" "${variants}    MuonOptimizer muon = 1000;\n" schema "${schema}")
file(READ ${CMAKE_CURRENT_LIST_DIR}/messages.proto messages)
file(WRITE ${OUT}/proto/halflife/run_config.proto "${schema}${messages}")

file(READ ${SOURCE_DIR}/src/optim/optimizers.inc lines)
file(WRITE ${OUT}/src/optim/optimizers.inc "${lines}HL_OPTIMIZER(MuonKind)\n")
