// Runs small tools that checks need: mpirun, srun, nvidia-smi.
#pragma once

#include <filesystem>
#include <string>

namespace halflife::cli::doctor {

// Returns the path of this program in $PATH. Empty: not found.
std::filesystem::path FindProgram(const std::string& name);

struct CommandOutput {
  int exit_code = 0;  // 124: the tool took longer than 15 s and was stopped.
  std::string text;   // stdout and stderr.
};
// `command_line` is passed to the shell. It must be a constant that contains no text from users or
// files.
CommandOutput RunTool(const char* command_line);

}  // namespace halflife::cli::doctor
