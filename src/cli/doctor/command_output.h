// The output of small tools that a check asks: mpirun, srun, nvidia-smi.
#pragma once

#include <filesystem>
#include <string>

namespace halflife::cli::doctor {

// Where $PATH has this program; empty: nowhere.
std::filesystem::path FindProgram(const std::string& name);

struct CommandOutput {
  int exit_code = 0;  // 124: it took longer than 15 s and was ended
  std::string text;   // stdout and stderr
};
// `command_line` is for the shell: a constant, never put together from what a user or file says.
CommandOutput RunTool(const char* command_line);

}  // namespace halflife::cli::doctor
