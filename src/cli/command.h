// A subcommand: one file of this folder, one line in commands.inc. Add<Name> declares its options
// on `app` and sets `action` from the subcommand's callback; main runs the action of the one that
// was chosen.
//
//   void AddPrepare(CLI::App& app, Action& action) {
//     auto options = std::make_shared<Options>();
//     CLI::App* command = app.add_subcommand("prepare", "Tokenise text into a dataset");
//     command->add_option("--out", options->out, "...")->required();
//     command->callback([=, &action] { action = [options] { return Run(*options); }; });
//   }
#pragma once

#include <functional>

#include "core/exit_code.h"

namespace CLI {
class App;
}

namespace halflife::cli {

using Action = std::function<ExitCode()>;

#define HL_COMMAND(Name) void Add##Name(CLI::App& app, Action& action);
#include "cli/commands.inc"
#undef HL_COMMAND

}  // namespace halflife::cli
