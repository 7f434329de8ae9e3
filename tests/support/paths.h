// Where tests find the repository and the program. Compiled once, so that no test's object depends
// on where it was built, and a compiler cache serves all checkouts.
//
//   RunCommand({kProgram, "doctor"});
//   ReadFile(std::filesystem::path(kSourceDir) / "docs/inspect.md", ExitCode::kInternal);
#pragma once

namespace halflife::test {

extern const char* const kSourceDir;  // the repository's root, absolute
extern const char* const kProgram;    // the `halflife` of this build

}  // namespace halflife::test
