#include "support/forked_engine.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/files.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace halflife::test {
namespace {

// The server, which ends when this process does, because its standard input ends.
class Server {
 public:
  Server() {
    int ends[2];
    HL_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "no pipe");
    process_ = ::fork();
    HL_CHECK(process_ >= 0, "fork failed");
    if (process_ == 0) {
      ::dup2(ends[0], STDIN_FILENO);
      ::execl(kEngineServer, kEngineServer, static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(ends[0]);
    input_ = ends[1];
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void Send(const std::string& line) {
    const std::lock_guard lock(mutex_);
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t count = ::write(input_, line.data() + sent, line.size() - sent);
      HL_CHECK(count > 0, kEngineServer, " does not read its input");
      sent += static_cast<size_t>(count);
    }
  }
  void RequireAlive() {
    const std::lock_guard lock(mutex_);
    HL_CHECK(::waitpid(process_, nullptr, WNOHANG) == 0, kEngineServer, " has ended");
  }

 private:
  std::mutex mutex_;
  pid_t process_ = -1;
  int input_ = -1;
};

nlohmann::json EnvironmentWith(const std::map<std::string, std::string>& changes) {
  nlohmann::json all = nlohmann::json::object();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t end = text.find('=');
    all[text.substr(0, end)] = text.substr(end + 1);
  }
  for (const auto& [name, value] : changes) all[name] = value;
  return all;
}

}  // namespace

RunResult RunForked(const std::vector<std::string>& arguments, const RunOptions& options) {
  static Server server;
  const TempDir dir;
  const std::string out = dir / "out", err = dir / "err", status = dir / "status";
  const nlohmann::json command = {{"arguments", arguments},
                                  {"output", out},
                                  {"errors", err},
                                  {"environment", EnvironmentWith(options.env)},
                                  {"directory", options.cwd},
                                  {"timeout_s", options.timeout_s},
                                  {"status", status}};
  std::string line;
  try {
    line = command.dump() + "\n";
  } catch (const nlohmann::json::type_error&) {  // a text that is not UTF-8
    std::vector<std::string> words = arguments;
    words.insert(words.begin(), kProgram);
    return RunCommand(words, options);
  }
  server.Send(line);
  while (!std::filesystem::exists(status)) {
    server.RequireAlive();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return {.exit_code = std::stoi(ReadFile(status, ExitCode::kInternal)),
          .out = ReadFile(out, ExitCode::kInternal),
          .err = ReadFile(err, ExitCode::kInternal)};
}

}  // namespace halflife::test
