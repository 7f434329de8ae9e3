#include "cli/doctor/command_output.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "core/error.h"

namespace halflife::cli::doctor {

std::filesystem::path FindProgram(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path candidate = std::filesystem::path(folder) / name;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(candidate, ignored) &&
        ::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
  }
  return {};
}

CommandOutput RunTool(const char* command_line) {
  const std::string line = Concat("exec 2>&1 </dev/null; timeout -k 1 15 ", command_line);
  std::FILE* const pipe = ::popen(line.c_str(), "re");
  HL_CHECK_AS(ExitCode::kEnvironment, pipe != nullptr, "cannot start a shell for '", command_line,
              "': ", internal::ErrnoText(errno));
  CommandOutput output;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    output.text.append(buffer, n);
  }
  const int status = ::pclose(pipe);
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

}  // namespace halflife::cli::doctor
