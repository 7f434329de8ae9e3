// The options of commands that compute with a model: device and type.
#pragma once

#include "cli/command_line/options.h"

namespace CLI {
class App;
}

namespace halflife::cli {

void AddPlace(CLI::App& command, PlaceOptions& place);

}  // namespace halflife::cli
