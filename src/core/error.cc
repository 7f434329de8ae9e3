#include "core/error.h"

#include <cstring>

namespace halflife {
namespace {

std::string Describe(ExitCode code, const std::string& place, const std::string& message) {
  return code == ExitCode::kInternal ? Concat(place, ": ", message) : message;
}

}  // namespace

Error::Error(ExitCode code, std::string place, std::string message)
    : std::runtime_error(Describe(code, place, message)),
      code_(code),
      place_(std::move(place)),
      message_(std::move(message)) {}

namespace internal {

void ThrowError(ExitCode code, const char* file, int line, const char* condition,
                std::string message) {
  std::string_view path(file);
  if (const size_t src = path.rfind("src/"); src != std::string_view::npos) path.remove_prefix(src);
  std::string text = std::move(message);
  if (code == ExitCode::kInternal && condition != nullptr) {
    text = Concat("check failed: ", condition, text.empty() ? "" : ": ", text);
  }
  throw Error(code, Concat(path, ":", line), std::move(text));
}

std::string ErrnoText(int errno_value) {
  return Concat(std::strerror(errno_value), " (errno ", errno_value, ")");
}

}  // namespace internal
}  // namespace halflife
