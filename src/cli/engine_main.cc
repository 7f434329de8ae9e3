// `halflife-engine`: the program that `halflife` executes for a subcommand that needs LibTorch. It
// parses the same command line.
#include <unistd.h>

#include <cstdio>

#include "cli/engine.h"

int main(int argc, char** argv) {
  const int code = halflife::cli::RunEngine(argc, argv);
  std::fflush(nullptr);
  // Skips the destructors of static objects, in which LibTorch unregisters its operators (0.2 s).
  ::_exit(code);
}
