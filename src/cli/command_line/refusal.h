// Reports errors of CLI11 in this program's words: the cause, the correct form, and a pointer to
// --help.
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

// Error kUsage. `program` threw `error` while parsing, and still has the values read so far.
[[noreturn]] void Refuse(const CLI::App& program, const CLI::ParseError& error);

}  // namespace halflife::cli
