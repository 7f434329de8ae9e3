// Runs a program until it ends and returns its output. Tests use it to run the `halflife` binary
// as a user does.
//
//   const RunResult result =
//       RunCommand({kProgram, "train", "--config", path}, {.timeout_s = 60});
//   EXPECT_EQ(result.exit_code, 2) << result.err;
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace halflife::test {

struct RunOptions {
  double timeout_s = 120;  // After this time the process group gets SIGKILL, and exit_code is -1.
  std::map<std::string, std::string> env;  // Added to this process's environment.
  std::string cwd;
};
struct RunResult {
  int exit_code = 0;  // 128 + signal if a signal ended the program; -1 after the timeout.
  std::string out, err;
};
// Waits for a child that leads a process group, and returns RunResult::exit_code. `timeout_s`: 0
// for no timeout.
int AwaitExit(pid_t child, double timeout_s);

RunResult RunCommand(const std::vector<std::string>& command, const RunOptions& options = {});

// Returns the command line `mpirun -n ranks` with the flags that tests need: oversubscribed,
// unbound, root allowed, loopback only.
RunResult RunRanks(int ranks, const std::vector<std::string>& command,
                   const RunOptions& options = {});

}  // namespace halflife::test
