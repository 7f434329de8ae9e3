// halflife doctor: what this machine has, and the command that mends what is missing.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {

void AddDoctor(CLI::App& app, Request& request) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command =
      app.add_subcommand("doctor", "Say what this machine has and what mends the rest");
  DescribeUse(
      *command,
      {.notes = "Libraries, GPUs, cores, limits, network and disk, each OK, WARN or FAIL with the "
                "command that mends it. Writes at most 512 MiB below --run and deletes it; under "
                "mpirun sums tensors between the ranks for 5 s. Exit 4 where anything FAILs. "
                "Before the program is built, launch/setup --check looks at what it is built from.",
       .examples = {"halflife doctor", "halflife doctor --run /scratch/runs --json",
                    "launch/mpirun/run.sh --ranks 2 -- halflife doctor"},
       .exit_codes = {ExitCode::kEnvironment, ExitCode::kTimeout, ExitCode::kPeerLost}});
  command->add_option("--run", options->run, "The folder that runs will be written to")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_flag("--quick", options->quick, "Leave out the disk and all-reduce tests");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
