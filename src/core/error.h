// The project's exception type and the checks that throw it. Unlike assert, checks are always on.
//
//   // An internal error: exit code 70.
//   HL_CHECK(begin <= end, "range [", begin, ", ", end, ") is reversed");
//   // An error that the user or the environment caused has its own exit code.
//   HL_CHECK_AS(ExitCode::kData, file, "cannot open ", path, "; is it readable?");
//   HL_FAIL(ExitCode::kUsage, "unknown mixer '", name, "'; known: ", names);
//
// A message names the cause and then the fix. Destructors log and never throw.
#pragma once

#include <stdexcept>
#include <string>

#include "core/concat.h"
#include "core/exit_code.h"

namespace halflife {

class Error : public std::runtime_error {
 public:
  // `place` is the file:line of the check. what() shows it only for internal errors: other errors
  // are addressed to users, whom a source line does not help.
  Error(ExitCode code, std::string place, std::string message);

  ExitCode code() const { return code_; }
  const std::string& place() const { return place_; }
  const std::string& message() const { return message_; }

 private:
  ExitCode code_;
  std::string place_;
  std::string message_;
};

namespace internal {
[[noreturn]] void ThrowError(ExitCode code, const char* file, int line, const char* condition,
                             std::string message);
// "No space left on device (errno 28)"
std::string ErrnoText(int errno_value);
}  // namespace internal

}  // namespace halflife

#define HL_FAIL(code, ...)                                              \
  ::halflife::internal::ThrowError((code), __FILE__, __LINE__, nullptr, \
                                   ::halflife::Concat(__VA_ARGS__))

#define HL_CHECK_AS(code, condition, ...)                                      \
  do {                                                                         \
    if (!(condition)) [[unlikely]] {                                           \
      ::halflife::internal::ThrowError((code), __FILE__, __LINE__, #condition, \
                                       ::halflife::Concat(__VA_ARGS__));       \
    }                                                                          \
  } while (false)

#define HL_CHECK(condition, ...) \
  HL_CHECK_AS(::halflife::ExitCode::kInternal, condition __VA_OPT__(, ) __VA_ARGS__)
