// What CLI11 refuses, in this program's words: what was met, what would work, and where --help
// has the rest.
//
//   try {
//     program->parse(argc, argv);
//   } catch (const CLI::ParseError& error) {
//     Refuse(*program, error);
//   }
#pragma once

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace halflife::cli {

// Error kUsage. `program` threw `error` from its parse, and still holds what it had read.
[[noreturn]] void Refuse(const CLI::App& program, const CLI::ParseError& error);

}  // namespace halflife::cli
