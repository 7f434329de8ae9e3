// `halflife-engine`: the program that `halflife` executes for a subcommand that needs LibTorch. It
// parses the same command line.
#include <unistd.h>

#include <cstdio>

#include "cli/engine.h"

int main(int argc, char** argv) {
  const int code = halflife::cli::RunEngine(argc, argv);
  std::fflush(nullptr);
  // Without the destructors of static objects: LibTorch's take 0.2 s to unregister its operators.
  ::_exit(code);
}
