// Translates an exception into the exit code of the program and a message for the user.
#pragma once

#include <exception>
#include <string>

#include "core/exit_code.h"

namespace halflife::cli {

struct Failure {
  ExitCode code = ExitCode::kInternal;
  std::string text;
  bool is_consequence = false;  // A collective failed because another rank is gone.
};

// An Error keeps its code. A file system error or lack of memory is kEnvironment. Any other
// exception is kInternal, a bug. The text omits LibTorch's stack trace.
Failure DescribeFailure(const std::exception_ptr& thrown);

}  // namespace halflife::cli
