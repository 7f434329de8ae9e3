// Translates an exception into the exit code of the program and a message for the user.
#pragma once

#include <exception>
#include <string>

#include "core/exit_code.h"

namespace halflife::cli {

struct Failure {
  ExitCode code = ExitCode::kInternal;
  std::string text;
  bool is_consequence = false;  // a collective failed because another rank went away
};

// An Error keeps its code. An error of the file system or a lack of memory is kEnvironment. Any
// other exception is kInternal, a bug; the text leaves out LibTorch's stack trace.
Failure DescribeFailure(const std::exception_ptr& thrown);

}  // namespace halflife::cli
