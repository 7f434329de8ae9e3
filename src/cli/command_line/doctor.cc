// halflife doctor: reports the capabilities of this machine, and the commands that fix problems.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {

void AddDoctor(CLI::App& app, Request& request) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand("doctor", "Check this machine and suggest fixes");
  DescribeUse(
      *command,
      {.notes =
           "Checks libraries, GPUs, cores, limits, network and disk. Each is OK, WARN or FAIL, "
           "with the command that fixes it. Writes at most 512 MiB below --run and deletes "
           "it. Under mpirun, the ranks sum tensors for 5 s. The exit code is 4 if anything "
           "is FAIL. Before the build, launch/setup --check checks the build dependencies.",
       .examples = {"halflife doctor", "halflife doctor --run /scratch/runs --json",
                    "launch/mpirun/run.sh --ranks 2 -- halflife doctor"},
       .exit_codes = {ExitCode::kEnvironment, ExitCode::kTimeout, ExitCode::kPeerLost}});
  command->add_option("--run", options->run, "The folder in which runs will be written")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_flag("--quick", options->quick, "Skip the disk and all-reduce tests");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
