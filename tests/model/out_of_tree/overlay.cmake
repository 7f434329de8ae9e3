# Run at build time (cmake -P): the schema and the lists of parts with the toys added, as their
# author would add them to the tree.
#   -DSOURCE_DIR= -DOUT=
set(toys ${CMAKE_CURRENT_LIST_DIR})

# add_line(TEXT AFTER LINE): puts LINE below AFTER, which must be there.
function(add_line text after line)
  string(FIND "${${text}}" "${after}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "the ${text} has no '${after}'")
  endif()
  string(REPLACE "${after}" "${after}${line}\n" ${text} "${${text}}")
  set(${text} "${${text}}" PARENT_SCOPE)
endfunction()

# A message and a line each ...
file(READ ${SOURCE_DIR}/proto/halflife/model.proto schema)
add_line(schema "message MixerConfig {\n  oneof variant {\n"
  "    ToyMixer toy = 1000;\n    ToyDeltaMixer toy_delta = 1001;")
add_line(schema "message ChannelMixerConfig {\n  oneof variant {\n" "    ToyChannelMixer toy = 1000;")
add_line(schema "message PositionsConfig {\n  oneof variant {\n" "    ToyPositions toy = 1000;")
file(READ ${toys}/messages.proto messages)
file(WRITE ${OUT}/proto/halflife/model.proto "${schema}${messages}")

# ... and a line.
function(add_to_list list line)
  file(READ ${SOURCE_DIR}/src/${list} lines)
  file(WRITE ${OUT}/src/${list} "${lines}${line}\n")
endfunction()
add_to_list(model/mixers/mixers.inc "HL_MIXER(ToyVariant)\nHL_MIXER(ToyDeltaVariant)")
add_to_list(model/channel_mixers/channel_mixers.inc "HL_CHANNEL_MIXER(ToyChannelMixerVariant)")
add_to_list(model/positions/positions.inc "HL_POSITIONS(ToyPositionsVariant)")
