// halflife doctor: reports the capabilities of this machine, and the commands that fix problems.
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command_line/options.h"
#include "cli/doctor/checks.h"
#include "cli/world.h"
#include "core/host.h"
#include "core/json_text.h"
#include "core/versions.h"

namespace halflife::cli {
namespace {

using doctor::Verdict;

// Appends the group. Consecutive checks with the same title become one group.
void Append(doctor::Group group, doctor::Report& report) {
  if (report.groups.empty() || report.groups.back().title != group.title) {
    report.groups.push_back({group.title, {}});
  }
  auto& findings = report.groups.back().findings;
  findings.insert(findings.end(), group.findings.begin(), group.findings.end());
}

// Returns on every rank the verdict of rank 0, which has all findings.
bool AnyFailure(const doctor::Report& report, dist::RankContext& context) {
  double failures = report.Count(Verdict::kFail);
  context.control()
      .AllReduce(Ref(&failures, 1), dist::ReduceOp::kMax, {"doctor verdict", 0}, nullptr)
      .WaitHost();
  return failures > 0;
}

}  // namespace

ExitCode Run(const DoctorOptions& options) {
  doctor::CheckInputs inputs;
  inputs.run_folder = options.run;
  inputs.measure = !options.quick;
  inputs.launcher = ReadLauncherEvidence();
  const BuildInfo build = GetBuildInfo();
  doctor::Report report{build.version, build.git_hash, HostName(), 1, {}};
  if (inputs.launcher.rank == 0) {  // Before MPI, because a check may start programs.
    for (const doctor::LocalCheck& check : doctor::LocalChecks()) {
      Append(doctor::Run(check, inputs), report);
    }
  }
  return RunInWorld(dist::RankConfig{}.timeout_s, [&](dist::RankContext& context, auto&) {
    report.world_size = context.world_size();
    for (const doctor::WorldCheck& check : doctor::WorldChecks()) {
      Append({check.group, check.run(inputs, context)}, report);
    }
    const bool failed = AnyFailure(report, context);
    if (context.rank() == 0) {
      std::cout << (options.json ? JsonText(doctor::ReportJson(report), 2) + "\n"
                                 : doctor::ReportText(report))
                << std::flush;
    }
    return failed ? ExitCode::kEnvironment : ExitCode::kFinished;
  });
}

}  // namespace halflife::cli
