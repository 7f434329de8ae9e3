#include "core/threads.h"

#include "core/error.h"

namespace halflife::internal {

void FailWithoutThread(const std::system_error& error) {
  HL_FAIL(
      ExitCode::kEnvironment, "cannot start a thread: ", error.code().message(),
      ". Allow more threads (`ulimit -u`, the pids limit of a container) or more memory for the "
      "process (`ulimit -v`).");
}

}  // namespace halflife::internal
