// The whole command line: the program with all its subcommands and options, its parsing, and the
// errors of parsing. Help, shell completion and their tests use it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line/command.h"
#include "cli/command_line/options.h"
#include "core/exit_code.h"

namespace CLI {
class ParseError;
}

namespace halflife::cli {

// Parses argv into a Request, and prints help or errors.
//
//   Request request;
//   if (const auto code = ParseCommandLine(argc, argv, request)) return static_cast<int>(*code);
//
// Returns nullopt if the program should run `request`. Returns an exit code if help or the version
// was printed. Error kUsage for unknown words, with similar ones, and for invalid values or
// combinations, with the valid ones.
std::optional<ExitCode> ParseCommandLine(int argc, char** argv, Request& request);

// Parsing sets `request`, which must outlive the result.
std::unique_ptr<CLI::App> MakeProgram(Request& request);

// Error kUsage for the first word that is not a subcommand, or not an option of the preceding one,
// with similar words. CLI11 itself would report only what is missing because of that word.
void CheckWords(const CLI::App& app, const std::vector<std::string>& words);

// Reports errors of CLI11 in this program's words: the cause, the correct form, and a pointer to
// --help.
//
//   try {
//     program->parse(argc, argv);
//   } catch (const CLI::ParseError& error) {
//     Refuse(*program, error);
//   }
//
// Error kUsage. `program` threw `error` while parsing, and still has the values read so far.
[[noreturn]] void Refuse(const CLI::App& program, const CLI::ParseError& error);

}  // namespace halflife::cli
