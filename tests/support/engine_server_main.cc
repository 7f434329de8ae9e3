// Runs commands of `halflife` for tests that need hundreds of them. LibTorch takes 0.4 s to load,
// so this program loads it once and forks a process for each command.
//
// A line of standard input is a command:
//
//   {"arguments": ["score", ...], "output": FILE, "errors": FILE}
//
// The files receive standard output and standard error. The answer is a line with the exit code. A
// command that a signal ended has 128 + its number.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/engine.h"

namespace {

void WriteTo(int descriptor, const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || ::dup2(file, descriptor) < 0) ::_exit(126);
}

[[noreturn]] void RunCommand(const nlohmann::json& command) {
  WriteTo(STDOUT_FILENO, command.at("output"));
  WriteTo(STDERR_FILENO, command.at("errors"));
  std::vector<std::string> words = command.at("arguments");
  words.insert(words.begin(), "halflife");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int code = halflife::cli::RunEngine(static_cast<int>(words.size()), argv.data());
  std::fflush(nullptr);
  ::_exit(code);
}

int ExitCodeOf(pid_t process) {
  int status = 0;
  ::waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json command = nlohmann::json::parse(line);
    const pid_t process = ::fork();
    if (process < 0) return 1;
    if (process == 0) RunCommand(command);
    std::cout << ExitCodeOf(process) << std::endl;
  }
}
