// halflife report: one HTML page about runs and evaluations, or about a sweep.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iostream>

#include "cli/run.h"
#include "cli/run_facts.h"
#include "core/concat.h"
#include "core/error.h"
#include "core/files.h"
#include "core/human.h"
#include "core/log.h"
#include "core/version.h"
#include "report/evaluation.h"
#include "report/figure.h"
#include "report/page.h"
#include "sweep/results.h"

namespace halflife::cli {
namespace {

std::string Made() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M UTC", &utc);
  const BuildInfo build = GetBuildInfo();
  return Concat("Made by halflife report, version ", build.version, " ", build.git_hash, ", ",
                time);
}

// What the arguments name: folders of runs, files of `halflife eval --out`.
struct Sources {
  std::vector<report::RunRecord> runs;
  std::vector<report::Evaluation> evaluations;

  void Add(const std::string& path) {
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) {
      evaluations.push_back(report::ReadEvaluation(path));
    } else {
      runs.push_back(ReadRunWithFacts(path));
    }
  }
};

// A shell's runs/* also names what is no run, e.g. what a killed start left: the rest is still
// worth a page.
Sources ReadSources(const std::vector<std::string>& paths) {
  Sources sources;
  std::string last_problem;
  for (const std::string& path : paths) {
    try {
      sources.Add(path);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) throw;
      last_problem = error.message();
      if (paths.size() > 1) HL_WARN("report", "left out: ", last_problem);
    }
  }
  HL_CHECK_AS(ExitCode::kUsage, !sources.runs.empty() || !sources.evaluations.empty(),
              paths.size() == 1 ? last_problem
                                : Concat("none of ", paths.size(),
                                         " paths is a run or a file of "
                                         "`halflife eval --out`"));
  return sources;
}

// A picture has the curves by length alone.
std::string MakeReport(const Sources& sources, const std::string& out) {
  if (!out.ends_with(".svg")) return report::RenderPage(sources.runs, sources.evaluations, Made());
  const std::vector<report::PlotSpec> plots = report::ChartsByLength(sources.evaluations);
  HL_CHECK_AS(ExitCode::kUsage, !plots.empty(), "--out ", out,
              ": a picture shows perplexity by length, and no file of `halflife eval --lengths "
              "--out` with a row is among what is given; a page (--out report.html) would work");
  return report::RenderFigure(plots);
}

std::string SweepPage(const std::string& path) {
  const sweep::SweepFolder folder(path);
  const sweep::SweepConfig config = sweep::LoadSweep(folder.sweep_file(), {});
  const auto results = sweep::ReadResults(config, folder, ReadRunWithFacts);
  const auto groups = sweep::SumUp(config, results);
  const std::string name = std::filesystem::weakly_canonical(path).filename().string();
  return report::RenderOverview(
      name, sweep::Figure(config, groups),
      {sweep::SummaryTable(config, groups), sweep::ResultsTable(config, results)}, Made());
}

}  // namespace

// A page under the name of something else would open as that.
void RequireName(const std::string& out) {
  const std::string extension = std::filesystem::path(out).extension().string();
  constexpr const char* kKnown[] = {"", ".html", ".htm", ".svg"};
  HL_CHECK_AS(ExitCode::kUsage, IsStandardOutput(out) || std::ranges::count(kKnown, extension) > 0,
              "--out ", out,
              ": a page, report.html, or of `halflife eval --lengths --out` a "
              "picture, report.svg, would work");
}

ExitCode Run(const ReportOptions& options) {
  RequireName(options.out);
  const bool is_sweep = options.runs.size() == 1 && sweep::SweepFolder::Is(options.runs.front());
  HL_CHECK_AS(ExitCode::kUsage, !is_sweep || !options.out.ends_with(".svg"), "--out ", options.out,
              ": a sweep has a page, with its picture on it; --out report.html would work");
  const std::string page = is_sweep ? SweepPage(options.runs.front())
                                    : MakeReport(ReadSources(options.runs), options.out);
  WriteOutput(options.out, page, ExitCode::kEnvironment);
  std::ostream& words = IsStandardOutput(options.out) ? std::cerr : std::cout;
  words << "wrote " << options.out << " (" << HumanBytes(page.size()) << ")\n";
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
