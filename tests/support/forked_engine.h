// Runs `halflife` for tests in a process that is forked from one that has loaded LibTorch
// (engine_server_main.cc), which saves 0.4 s per command.
#pragma once

#include <string>
#include <vector>

#include "support/subprocess.h"

namespace halflife::test {

// Like RunCommand({kProgram, arguments...}, options), but without what the small program in
// src/cli/main.cc does before it starts the engine. Any thread may call it.
RunResult RunForked(const std::vector<std::string>& arguments, const RunOptions& options = {});

}  // namespace halflife::test
