#include "cli/command_line/end_output.h"

#include <poll.h>
#include <unistd.h>

#include <iostream>

#include "core/log.h"

namespace halflife::cli {

ExitCode EndOutput(ExitCode code) {
  std::cout.flush();
  if (std::cout || code != ExitCode::kFinished) return code;
  pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) return code;
  HL_ERROR("halflife", "cannot write to standard output. Check whether its disk is full.");
  return ExitCode::kEnvironment;
}

}  // namespace halflife::cli
