// `halflife`: parses the command line and answers --help, --version and `completion`. For all other
// commands the process becomes `halflife-engine`, which lies in the same folder. Only the engine
// links LibTorch, which takes 0.4 s to load.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "cli/command_line/options.h"
#include "cli/command_line/program.h"
#include "core/error.h"
#include "core/host.h"
#include "core/log.h"

namespace halflife::cli {
namespace {

// Keeps the process id and the file descriptors, so launchers and shells see one program.
[[noreturn]] void ExecEngine(char** argv) {
  std::error_code ignored;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path engine = self.parent_path() / "halflife-engine";
  ::execv(engine.c_str(), argv);
  HL_FAIL(ExitCode::kEnvironment, "cannot start ", engine.string(), ": ",
          internal::ErrnoText(errno), ". It must be in the folder of ", self.string(),
          ". Build the target halflife, or install or copy both programs together.");
}

int Main(int argc, char** argv) {
  const LauncherEvidence evidence = ReadLauncherEvidence();
  log::Init({.rank = evidence.rank, .world_size = evidence.world_size});
  try {
    Request request;
    if (const auto code = ParseCommandLine(argc, argv, request))
      return static_cast<int>(EndOutput(*code));
    if (const auto* completion = std::get_if<CompletionOptions>(&request))
      return static_cast<int>(EndOutput(Run(*completion)));
    ExecEngine(argv);
  } catch (const Error& error) {
    LetRankZeroReport(evidence.rank, error.code());
    HL_ERROR("halflife", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    HL_ERROR("halflife", "internal fault: ", error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}

}  // namespace
}  // namespace halflife::cli

int main(int argc, char** argv) { return halflife::cli::Main(argc, argv); }
