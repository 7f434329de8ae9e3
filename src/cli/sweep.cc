// halflife sweep: runs a grid of runs of one recipe.
#include "sweep/sweep.h"

#include <iostream>

#include "cli/command_line/options.h"
#include "cli/run_facts.h"
#include "core/error.h"
#include "core/host.h"

namespace halflife::cli {
namespace {

struct Share {
  int index = 0, count = 1;
};

// "2/8"
Share ParseShare(const std::string& text) {
  Share share;
  char slash = 0, rest = 0;
  std::istringstream in(text);
  in >> share.index >> slash >> share.count;
  HL_CHECK_AS(
      ExitCode::kUsage,
      !in.fail() && slash == '/' && !(in >> rest) && share.index >= 0 && share.index < share.count,
      "--share '", text,
      "' is not INDEX/COUNT. Use 0/8 for the first of eight, and 7/8 for the last.");
  return share;
}

// Returns the program that this process was before it became the engine in the same folder.
std::filesystem::path PathOfProgram() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "halflife";
}

}  // namespace

ExitCode Run(const SweepOptions& options) {
  const LauncherEvidence evidence = ReadLauncherEvidence();
  HL_CHECK_AS(
      ExitCode::kUsage, evidence.world_size == 1, "sweep as one of ", evidence.world_size,
      " ranks: a sweep is one process, which starts its runs. On several machines, start one "
      "with --share INDEX/COUNT on each.");
  const Share share = ParseShare(options.share);
  const sweep::SweepRequest request = {
      .config = sweep::LoadSweep(options.config, options.overrides),
      .folder = options.out,
      .program = PathOfProgram(),
      .jobs = options.jobs,
      .retries = options.retries,
      .share = share.index,
      .num_shares = share.count,
      .read_run = ReadRunWithFacts};
  if (options.dry_run) {
    std::cout << sweep::PlanText(request) << std::flush;
    return ExitCode::kFinished;
  }
  return sweep::RunSweep(request);
}

}  // namespace halflife::cli
