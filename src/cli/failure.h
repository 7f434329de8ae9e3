// What an exception means to the caller of the program: its exit code, and words for a person.
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

// Error keeps its code. What the system refuses (a file system's error, memory) is kEnvironment;
// all else is a fault of ours, told without LibTorch's stack trace.
Failure DescribeFailure(const std::exception_ptr& thrown);

}  // namespace halflife::cli
