#include "cli/engine.h"

#include <cstdlib>

#include "cli/command_line/options.h"
#include "cli/command_line/program.h"
#include "cli/world.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/host.h"
#include "core/log.h"
#include "kernels/common/cpu/instruction_set.h"

namespace halflife::cli {
namespace {

ExitCode Run(std::monostate) { HL_FAIL(ExitCode::kInternal, "no subcommand was chosen"); }

}  // namespace

int RunEngine(int argc, char** argv) {
  const LauncherEvidence evidence = ReadLauncherEvidence();
  log::Init({.rank = evidence.rank, .world_size = evidence.world_size});
  try {
    Request request;
    if (const auto code = ParseCommandLine(argc, argv, request))
      return static_cast<int>(EndOutput(*code));
    kernels::cpu::UseInstructionSetOfEnvironment();
    const char* fault_spec = std::getenv("HL_FAULT");
    fault::Arm(fault_spec == nullptr ? "" : fault_spec, evidence.rank);
    const ExitCode code = std::visit([](const auto& options) { return Run(options); }, request);
    return static_cast<int>(EndOutput(code));
  } catch (...) {
    const Failure failure = DescribeFailure(std::current_exception());
    LetRankZeroReport(evidence.rank, failure.code);
    HL_ERROR("halflife", failure.text);
    return static_cast<int>(failure.code);
  }
}

}  // namespace halflife::cli
