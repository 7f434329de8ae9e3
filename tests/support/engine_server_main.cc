// Runs commands of `halflife` for tests. LibTorch takes 0.4 s to load, so this program loads it
// once and forks a process for each command. Several commands may run at the same time.
//
// A line of standard input is a command:
//
//   {"arguments": ["score", ...], "output": FILE, "errors": FILE}
//
// The files receive standard output and standard error; standard input is empty. Further members:
//
//   "environment": {"NAME": "VALUE"}   replaces the environment
//   "directory": DIR                   the working directory
//   "timeout_s": 60                    after it, the process group gets SIGKILL
//   "status": FILE                     receives the answer, which else is a line of standard output
//
// The answer is the exit code: 128 + its number for a signal, -1 after the timeout.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/engine.h"
#include "support/subprocess.h"

namespace {

using nlohmann::json;

void Replace(int descriptor, const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags, 0600);
  if (file < 0 || ::dup2(file, descriptor) < 0) ::_exit(126);
  ::close(file);
}

[[noreturn]] void RunCommand(const json& command) {
  constexpr int kNewFile = O_WRONLY | O_CREAT | O_TRUNC;
  Replace(STDIN_FILENO, "/dev/null", O_RDONLY);
  Replace(STDOUT_FILENO, command.at("output"), kNewFile);
  Replace(STDERR_FILENO, command.at("errors"), kNewFile);
  if (command.contains("environment")) {
    ::clearenv();
    for (const auto& [name, value] : command.at("environment").items())
      ::setenv(name.c_str(), value.get<std::string>().c_str(), 1);
  }
  const std::string directory = command.value("directory", "");
  if (!directory.empty() && ::chdir(directory.c_str()) != 0) ::_exit(126);
  std::vector<std::string> words = command.at("arguments");
  words.insert(words.begin(), "halflife");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int code = halflife::cli::RunEngine(static_cast<int>(words.size()), argv.data());
  std::fflush(nullptr);
  ::_exit(code);
}

[[noreturn]] void Supervise(const json& command) {
  ::signal(SIGCHLD, SIG_DFL);
  const pid_t process = ::fork();
  if (process < 0) ::_exit(1);
  if (process == 0) {
    ::setpgid(0, 0);
    RunCommand(command);
  }
  ::setpgid(process, process);
  const int code = halflife::test::AwaitExit(process, command.value("timeout_s", 0.0));
  const std::string status = command.value("status", "");
  if (status.empty()) {
    std::cout << code << std::endl;
  } else {
    const std::string unfinished = status + ".new";
    std::ofstream(unfinished) << code;
    ::rename(unfinished.c_str(), status.c_str());
  }
  ::_exit(0);
}

}  // namespace

int main() {
  ::signal(SIGCHLD, SIG_IGN);  // ended supervisors leave nothing to wait for
  for (std::string line; std::getline(std::cin, line);) {
    const pid_t supervisor = ::fork();
    if (supervisor < 0) return 1;
    if (supervisor == 0) Supervise(json::parse(line));
  }
}
