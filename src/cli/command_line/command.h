// A subcommand consists of a struct and one line of HL_FOR_EACH_COMMAND in options.h, a function
// Add<Name> in this folder, and a function Run in the folder above. Add<Name> declares the options
// on `app`. After parsing, `request` contains the struct. Help and shell completion are generated
// from these declarations. Every option therefore describes its value, unit and default ("[...]" at
// the end if CLI11 cannot know it), and every value that is not plain text has a type name
// (help.h).
//
//   void AddImport(CLI::App& app, Request& request) {
//     auto options = std::make_shared<ImportOptions>();
//     CLI::App* command = app.add_subcommand("import", "Make a run from ...");
//     DescribeUse(*command,
//                 {.examples = {"halflife import ..."}, .exit_codes = {ExitCode::kData}});
//     command->add_option("--out", options->out, "...")->type_name("DIR")->required();
//     command->callback([=, &request] { request = *options; });
//   }
#pragma once

#include "cli/command_line/help.h"
#include "cli/command_line/options.h"
#include "core/exit_code.h"

namespace CLI {
class App;
}

namespace halflife::cli {

#define HL_ADD(Name) void Add##Name(CLI::App& app, Request& request);
HL_FOR_EACH_COMMAND(HL_ADD)
#undef HL_ADD

}  // namespace halflife::cli
