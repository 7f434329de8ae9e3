#include "cli/doctor/checks.h"

#include <nlohmann/json.hpp>

#include <sstream>

#include "core/concat.h"
#include "core/error.h"
#include "core/files.h"
#include "core/human.h"

namespace halflife::cli::doctor {
namespace {

constexpr LocalCheck kLocalChecks[] = {
    {"libraries", &CheckLibraries},
    {"libraries", &CheckMpirun},
    {"GPU", &CheckGpus},
    {"CPU and threads", &CheckCpu},
    {"CPU and threads", &CheckBinding},
    {"limits", &CheckLimits},
    {"limits", &CheckSharedMemory},
    {"network", &CheckHostName},
    {"network", &CheckInfiniBand},
    {"network", &CheckSlurm},
    {"disk", &CheckDisk},
};

constexpr WorldCheck kWorldChecks[] = {
    {"ranks", &CheckRankPlaces},
    {"ranks", &CheckAllReduce},
};

}  // namespace

std::span<const LocalCheck> LocalChecks() { return kLocalChecks; }
std::span<const WorldCheck> WorldChecks() { return kWorldChecks; }

std::string CheckInputs::Read(const std::filesystem::path& path) const {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return "";
  try {
    return ReadFile(path, ExitCode::kEnvironment);
  } catch (const Error&) {
    return "";  // The checks that need the file report that it is missing.
  }
}

Group Run(const LocalCheck& check, const CheckInputs& inputs) {
  try {
    return {check.group, check.run(inputs)};
  } catch (const std::exception& error) {
    return {check.group, {{Verdict::kFail, check.group, error.what()}}};
  }
}

const char* Name(Verdict verdict) {
  constexpr const char* kNames[] = {"OK", "WARN", "FAIL"};
  return kNames[static_cast<int>(verdict)];
}

int Report::Count(Verdict verdict) const {
  int count = 0;
  for (const Group& group : groups) {
    for (const Finding& finding : group.findings) count += finding.verdict == verdict ? 1 : 0;
  }
  return count;
}

std::string ReportText(const Report& report) {
  std::ostringstream out;
  out << "halflife " << report.version << " " << report.git_hash << " on " << report.host << ", "
      << Counted(report.world_size, "rank") << "\n";
  for (const Group& group : report.groups) {
    if (group.findings.empty()) continue;
    out << "\n" << group.title << "\n";
    for (const Finding& finding : group.findings) {
      out << Padded(Name(finding.verdict), 4) << "  " << Padded(finding.name, 16) << " "
          << finding.text << "\n";
      if (!finding.remedy.empty()) out << "      fix: " << finding.remedy << "\n";
    }
  }
  out << "\n"
      << report.Count(Verdict::kOk) << " OK, " << report.Count(Verdict::kWarn) << " WARN, "
      << report.Count(Verdict::kFail) << " FAIL\n";
  return out.str();
}

nlohmann::ordered_json ReportJson(const Report& report) {
  nlohmann::ordered_json json = {{"halflife", report.version},
                                 {"git_hash", report.git_hash},
                                 {"host", report.host},
                                 {"world_size", report.world_size},
                                 {"num_ok", report.Count(Verdict::kOk)},
                                 {"num_warn", report.Count(Verdict::kWarn)},
                                 {"num_fail", report.Count(Verdict::kFail)},
                                 {"findings", nlohmann::ordered_json::array()}};
  for (const Group& group : report.groups) {
    for (const Finding& finding : group.findings) {
      json["findings"].push_back({{"group", group.title},
                                  {"name", finding.name},
                                  {"verdict", Name(finding.verdict)},
                                  {"text", finding.text},
                                  {"remedy", finding.remedy},
                                  {"values", finding.values}});
    }
  }
  return json;
}

}  // namespace halflife::cli::doctor
