// halflife doctor: what this machine has, and the command that mends what is missing.
#include <CLI/CLI.hpp>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/doctor/checks.h"
#include "cli/world.h"
#include "core/host.h"
#include "core/version.h"

namespace halflife::cli {
namespace {

using doctor::Verdict;

struct Options {
  std::string run = "runs";
  bool json = false, quick = false;
};

// Consecutive checks of one title are one group.
void Append(doctor::Group group, doctor::Report& report) {
  if (report.groups.empty() || report.groups.back().title != group.title) {
    report.groups.push_back({group.title, {}});
  }
  auto& findings = report.groups.back().findings;
  findings.insert(findings.end(), group.findings.begin(), group.findings.end());
}

// The verdict of rank 0, which has all findings, on every rank.
bool AnyFailure(const doctor::Report& report, dist::RankContext& context) {
  double failures = report.Count(Verdict::kFail);
  context.control()
      .AllReduce(Ref(&failures, 1), dist::ReduceOp::kMax, {"doctor verdict", 0}, nullptr)
      .WaitHost();
  return failures > 0;
}

ExitCode Run(const Options& options) {
  doctor::Scene scene;
  scene.run_folder = options.run;
  scene.measure = !options.quick;
  scene.launcher = dist::ReadLauncherEvidence();
  const BuildInfo build = GetBuildInfo();
  doctor::Report report{build.version, build.git_hash, HostName(), 1, {}};
  if (scene.launcher.rank == 0) {  // before MPI: a check may start programs
    for (const doctor::LocalCheck& check : doctor::LocalChecks()) {
      Append(doctor::Run(check, scene), report);
    }
  }
  return RunInWorld(dist::RankConfig{}.timeout_s, [&](dist::RankContext& context, auto&) {
    report.world_size = context.world_size();
    for (const doctor::WorldCheck& check : doctor::WorldChecks()) {
      Append({check.group, check.run(scene, context)}, report);
    }
    const bool failed = AnyFailure(report, context);
    if (context.rank() == 0) {
      std::cout << (options.json ? doctor::ReportJson(report).dump(
                                       2, ' ', false, nlohmann::json::error_handler_t::replace) +
                                       "\n"
                                 : doctor::ReportText(report))
                << std::flush;
    }
    return failed ? ExitCode::kEnvironment : ExitCode::kFinished;
  });
}

}  // namespace

void AddDoctor(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
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
  command->callback([=, &action] { action = [options] { return Run(*options); }; });
}

}  // namespace halflife::cli
