// `halflife`: parses the command line, answers --help, --version and `completion`, and hands all
// else to `halflife-engine` beside it in the same process. LibTorch alone takes 0.2 s to load: only
// the engine links it.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "cli/command_line/end_output.h"
#include "cli/command_line/parse.h"
#include "cli/run.h"
#include "core/error.h"
#include "core/launcher.h"
#include "core/log.h"

namespace halflife::cli {
namespace {

// Process id and file descriptors stay, so launchers and shells see one program.
[[noreturn]] void BecomeEngine(char** argv) {
  std::error_code ignored;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path engine = self.parent_path() / "halflife-engine";
  ::execv(engine.c_str(), argv);
  HL_FAIL(ExitCode::kEnvironment, "cannot start ", engine.string(), ": ",
          internal::ErrnoText(errno), "; it belongs beside ", self.string(),
          " and is built with it (target halflife)");
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
    BecomeEngine(argv);
  } catch (const Error& error) {
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
