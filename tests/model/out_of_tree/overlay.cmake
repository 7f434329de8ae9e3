# Runs at build time (cmake -P). Writes copies of the schema and of the lists of parts to which the toys
# are added, in the way that their author would add them to the repository.
#   -DSOURCE_DIR= -DOUT=
include(${SOURCE_DIR}/tests/support/overlay_functions.cmake)

# Each toy has a message and a line in the schema.
file(READ ${SOURCE_DIR}/proto/halflife/model.proto schema)
add_line(schema "message MixerConfig {\n  oneof variant {\n"
  "    ToyMixer toy = 1000;\n    ToyDeltaMixer toy_delta = 1001;")
add_line(schema "message ChannelMixerConfig {\n  oneof variant {\n" "    ToyChannelMixer toy = 1000;")
add_line(schema "message PositionsConfig {\n  oneof variant {\n" "    ToyPositions toy = 1000;")
file(READ ${CMAKE_CURRENT_LIST_DIR}/messages.proto messages)
file(WRITE ${OUT}/proto/halflife/model.proto "${schema}${messages}")

# Each toy has a line in the list of its kind.
add_to_list(model/mixers/mixers.inc "HL_MIXER(ToyVariant)\nHL_MIXER(ToyDeltaVariant)")
add_to_list(model/channel_mixers/channel_mixers.inc "HL_CHANNEL_MIXER(ToyChannelMixerVariant)")
add_to_list(model/positions/positions.inc "HL_POSITIONS(ToyPositionsVariant)")
