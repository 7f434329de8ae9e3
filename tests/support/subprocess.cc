#include "support/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "core/error.h"
#include "core/files.h"
#include "support/temp_dir.h"

namespace halflife::test {
namespace {

[[noreturn]] void Exec(const std::vector<std::string>& command, const RunOptions& options,
                       const std::string& out, const std::string& err) {
  ::setpgid(0, 0);
  const int out_fd = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err_fd = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int null_fd = ::open("/dev/null", O_RDONLY);
  ::dup2(null_fd, 0);
  ::dup2(out_fd, 1);
  ::dup2(err_fd, 2);
  for (const auto& [key, value] : options.env) ::setenv(key.c_str(), value.c_str(), 1);
  if (!options.cwd.empty() && ::chdir(options.cwd.c_str()) != 0) ::_exit(126);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

int AwaitExit(pid_t child, double timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  int status = 0;
  while (::waitpid(child, &status, timeout_s > 0 ? WNOHANG : 0) == 0) {
    if (Clock::now() > deadline) {
      ::kill(-child, SIGKILL);
      ::waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

RunResult RunCommand(const std::vector<std::string>& command, const RunOptions& options) {
  const TempDir dir;
  const std::string out = dir / "out", err = dir / "err";
  const pid_t pid = ::fork();
  HL_CHECK(pid >= 0, "fork failed");
  if (pid == 0) Exec(command, options, out, err);
  ::setpgid(pid, pid);

  RunResult result;
  result.exit_code = AwaitExit(pid, options.timeout_s);
  result.out = ReadFile(out, ExitCode::kInternal);
  result.err = ReadFile(err, ExitCode::kInternal);
  return result;
}

RunResult RunRanks(int ranks, const std::vector<std::string>& command, const RunOptions& options) {
  // Each mpirun gets its own session directory, because an mpirun that ends deletes the directory
  // even if another one has just started in it.
  const TempDir session;
  std::vector<std::string> all = {"mpirun",
                                  "-n",
                                  std::to_string(ranks),
                                  "--oversubscribe",
                                  "--bind-to",
                                  "none",
                                  "--mca",
                                  "btl_tcp_if_include",
                                  "lo",
                                  "--mca",
                                  "oob_tcp_if_include",
                                  "lo",
                                  "--mca",
                                  "orte_tmpdir_base",
                                  session.path().string()};
  all.insert(all.end(), command.begin(), command.end());
  RunOptions with_env = options;
  with_env.env.insert({{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                       {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                       {"OMP_NUM_THREADS", "1"}});
  return RunCommand(all, with_env);
}

}  // namespace halflife::test
