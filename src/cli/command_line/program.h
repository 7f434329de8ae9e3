// The whole command line: the program with all its subcommands and options, its parsing, the errors
// of parsing, and the end of the program. Help, shell completion and their tests use it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line/options.h"
#include "core/exit_code.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace halflife::cli {

// Parses argv into a Request, and prints help or errors.
//
//   Request request;
//   if (const auto code = ParseCommandLine(argc, argv, request)) return static_cast<int>(*code);
//
// Returns nullopt if the program should run `request`. Returns an exit code if help or the version
// was printed. Throws Error kUsage for unknown words, with similar ones, and for invalid values or
// combinations, with the valid ones.
std::optional<ExitCode> ParseCommandLine(int argc, char** argv, Request& request);

// Parsing sets `request`, which must outlive the result.
std::unique_ptr<CLI::App> MakeProgram(Request& request);

// Throws Error kUsage for the first word that is not a subcommand, or not an option of the
// preceding one, with similar words. CLI11 itself would report only what is missing because of that
// word.
void CheckWords(const CLI::App& app, const std::vector<std::string>& words);

// Returns the candidates for the last word: lines "word<TAB>description", or one line
// ":files" or ":folders". Words of other prefixes are included.
std::string CompletionCandidates(const CLI::App& program, const std::vector<std::string>& words);

// Reports errors of CLI11 in this program's words: the cause, the correct form, and a pointer to
// --help.
//
//   try {
//     program->parse(argc, argv);
//   } catch (const CLI::ParseError& error) {
//     Refuse(*program, error);
//   }
//
// Throws Error kUsage. `program` threw `error` while parsing, and still has the values read so far.
[[noreturn]] void Refuse(const CLI::App& program, const CLI::ParseError& error);

//   return EndOutput(Run(options));
//
// Flushes standard output. If that failed (for example, a full disk behind `> results.json`), a
// command that succeeded returns kEnvironment. A reader that closed its pipe early, such as `head`,
// is not an error.
ExitCode EndOutput(ExitCode code);

// Reports an error that all ranks have only once, without communication.
//
//   LetRankZeroReport(launcher.rank, error.code());
//   HL_ERROR("halflife", error.what());
//
// Errors of the command line, the recipe, the dataset and the machine are usually the same on all
// ranks. Rank 0 reports such an error at once, and its exit makes the launcher end the other ranks.
// On those this function waits some seconds first. It returns only if rank 0 does not have the
// error, so that an error of one rank is still reported. Other errors (crashes, lost ranks,
// timeouts) return at once.
void LetRankZeroReport(int rank, ExitCode code);

}  // namespace halflife::cli
