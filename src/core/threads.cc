#include "core/threads.h"

#include <system_error>
#include <utility>

#include "core/error.h"

namespace halflife {

std::thread StartThread(std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    HL_FAIL(ExitCode::kEnvironment, "cannot start a thread: ", error.code().message(),
            "; more threads (`ulimit -u`, the pids limit of a container) or more memory for the "
            "process (`ulimit -v`) would work");
  }
}

}  // namespace halflife
