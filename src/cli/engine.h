#pragma once

namespace halflife::cli {

// Runs the subcommand of a command line of `halflife`, and returns its exit code. Errors are logged
// to standard error, standard output has been flushed, and all files are closed.
int RunEngine(int argc, char** argv);

}  // namespace halflife::cli
