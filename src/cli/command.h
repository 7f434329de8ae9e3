// A subcommand: one file of this folder, one line in commands.inc. Add<Name> declares its options
// on `app` and sets `action` from the subcommand's callback; main runs the action of the one that
// was chosen. Help and shell completion are made from these declarations, so every option says what
// it is, its unit and its default ("[...]" at the end, where CLI11 cannot know it), and every value
// that is no plain text says so by its type name (option_value.h).
//
//   void AddPrepare(CLI::App& app, Action& action) {
//     auto options = std::make_shared<Options>();
//     CLI::App* command = app.add_subcommand("prepare", "Tokenise text into a dataset");
//     DescribeUse(*command, {.examples = {"halflife prepare ..."}, .exit_codes = {ExitCode::kData}});
//     command->add_option("--out", options->out, "...")->type_name("DIR")->required();
//     command->callback([=, &action] { action = [options] { return Run(*options); }; });
//   }
#pragma once

#include <functional>

#include "cli/help.h"
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
