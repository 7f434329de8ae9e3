// The paths of the repository and of the program under test. They are compiled in only one file, so
// the objects of tests do not depend on the build folder, and all checkouts can share a compiler
// cache.
//
//   RunCommand({kProgram, "doctor"});
//   ReadFile(std::filesystem::path(kSourceDir) / "docs/inspect.md", ExitCode::kInternal);
#pragma once

namespace halflife::test {

extern const char* const kSourceDir;  // The repository's root, absolute.
extern const char* const kProgram;    // The `halflife` binary of this build.
extern const char* const kEngineServer;

}  // namespace halflife::test
