// Runs a program to its end and keeps what it printed: how tests look at the `halflife` binary as a
// user does.
//
//   const RunResult result =
//       RunCommand({kProgram, "train", "--config", path}, {.timeout_s = 60});
//   EXPECT_EQ(result.exit_code, 2) << result.err;
#pragma once

#include <map>
#include <string>
#include <vector>

namespace halflife::test {

struct RunOptions {
  double timeout_s = 120;                  // then SIGKILL to its process group; exit_code is -1
  std::map<std::string, std::string> env;  // added to ours
  std::string cwd;
};
struct RunResult {
  int exit_code = 0;  // 128 + signal where it died of one; -1 after the timeout
  std::string out, err;
};
RunResult RunCommand(const std::vector<std::string>& command, const RunOptions& options = {});

// mpirun -n ranks with the flags that tests need (oversubscribed, unbound, root allowed, loopback
// only).
RunResult RunRanks(int ranks, const std::vector<std::string>& command,
                   const RunOptions& options = {});

}  // namespace halflife::test
