// halflife report: writes one HTML page about sweeps, runs and evaluations.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "cli/command_line/options.h"
#include "cli/run_facts.h"
#include "core/clock.h"
#include "core/concat.h"
#include "core/error.h"
#include "core/files.h"
#include "core/human.h"
#include "core/log.h"
#include "core/versions.h"
#include "report/evaluation.h"
#include "report/page.h"
#include "report/plot.h"
#include "sweep/results.h"

namespace halflife::cli {
namespace {

namespace fs = std::filesystem;

std::string Made() {
  const BuildInfo build = GetBuildInfo();
  return Concat("Made by halflife report, version ", build.version, " ", build.git_hash, ", ",
                report::UtcMinute(UnixMicroseconds() / 1000));
}

// Returns the link from a page in `page_folder` to a run: to its report.html if that exists,
// otherwise to the folder.
std::string LinkTo(const fs::path& run, const fs::path& page_folder) {
  std::error_code ignored;
  const bool has_page = fs::exists(run / "report.html", ignored);
  return fs::proximate(run, page_folder).string() + (has_page ? "/report.html" : "/");
}

// `page_folder`: of the page, which links to the runs.
report::SweepRecord ReadSweep(const std::string& path, const fs::path& page_folder) {
  constexpr size_t kMaxCurves = 16;  // Number of distinguishable colours and dashes.
  const sweep::SweepFolder folder(path);
  const sweep::SweepConfig config = sweep::LoadSweep(folder.sweep_file(), {});
  const auto results = sweep::ReadResults(config, folder, ReadRunWithFacts);
  const auto groups = sweep::SumUp(config, results);
  report::SweepRecord record = {.name = fs::weakly_canonical(path).filename().string(),
                                .metric = config.summary.metric,
                                .figure = sweep::Figure(config, groups),
                                .by_axis = sweep::PlotsByAxis(config, results)};
  if (!groups.empty())
    record.tables.push_back(sweep::SummaryTable(config, groups, sweep::Digits::kFour));
  record.tables.push_back(sweep::RunsTable(config, results));
  for (const sweep::TrialResult& result : results)
    record.tables.back().links.push_back(result.status.attempts > 0 || result.steps > 0
                                             ? LinkTo(folder.run(result.trial.name), page_folder)
                                             : "");
  report::Table failures = sweep::FailuresTable(results);
  if (!failures.rows.empty()) record.tables.push_back(std::move(failures));
  const std::vector<size_t> shown = sweep::BestRuns(config, results, kMaxCurves);
  for (const size_t i : shown)
    record.runs.push_back(ReadRunWithFacts(folder.run(results[i].trial.name)));
  if (shown.size() < results.size())
    record.runs_note = Concat("The best ", shown.size(), " of ", results.size(), " runs by ",
                              config.summary.metric, ".");
  return record;
}

// Reads what a path names: a sweep's folder, a run's folder, or a file of `halflife eval --out`.
void Add(const std::string& path, const fs::path& page_folder, report::PageContent& content) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    content.evaluations.push_back(report::ReadEvaluation(path));
  } else if (sweep::SweepFolder::Is(path)) {
    content.sweeps.push_back(ReadSweep(path, page_folder));
  } else {
    content.runs.push_back(ReadRunWithFacts(path));
  }
}

// Reads all paths. Paths that are not runs are skipped with a warning if any other path is valid,
// because a shell's runs/* may match other folders, such as those of a killed start.
report::PageContent ReadContent(const std::vector<std::string>& paths,
                                const fs::path& page_folder) {
  report::PageContent content;
  std::string last_problem;
  for (const std::string& path : paths) {
    try {
      Add(path, page_folder, content);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) throw;
      last_problem = error.message();
      if (paths.size() > 1) HL_WARN("report", "left out: ", last_problem);
    }
  }
  const bool is_empty =
      content.sweeps.empty() && content.runs.empty() && content.evaluations.empty();
  HL_CHECK_AS(ExitCode::kUsage, !is_empty,
              paths.size() == 1 ? last_problem
                                : Concat("none of ", paths.size(),
                                         " paths is a sweep, a run or a file of "
                                         "`halflife eval --lengths --out`. Name at least one."));
  return content;
}

// Renders a picture, which contains only the curves by length.
std::string RenderPicture(const report::PageContent& content, const std::string& out) {
  HL_CHECK_AS(ExitCode::kUsage, content.sweeps.empty(), "--out ", out,
              ": a picture does not show a sweep. Use --out report.html; the sweep's own picture "
              "is figure.svg in its folder.");
  const std::vector<report::PlotSpec> plots = report::ChartsByLength(content.evaluations);
  HL_CHECK_AS(ExitCode::kUsage, !plots.empty(), "--out ", out,
              ": a picture shows perplexity by length, and no file of `halflife eval --lengths "
              "--out` with a row is among the paths. Use a page (--out report.html).");
  return report::RenderFigure(plots);
}

}  // namespace

// Rejects file extensions of other formats, with which a page would open in the wrong program.
void RequireName(const std::string& out) {
  const std::string extension = fs::path(out).extension().string();
  constexpr const char* kKnown[] = {"", ".html", ".htm", ".svg"};
  HL_CHECK_AS(ExitCode::kUsage, IsStandardOutput(out) || std::ranges::count(kKnown, extension) > 0,
              "--out ", out,
              " is not a page or picture. Use report.html, or report.svg for files of "
              "`halflife eval --lengths --out`.");
}

ExitCode Run(const ReportOptions& options) {
  RequireName(options.out);
  const report::PageContent content =
      ReadContent(options.runs, fs::absolute(options.out).parent_path());
  const std::string page = options.out.ends_with(".svg") ? RenderPicture(content, options.out)
                                                         : report::RenderPage(content, Made());
  WriteOutput(options.out, page, ExitCode::kEnvironment);
  std::ostream& words = IsStandardOutput(options.out) ? std::cerr : std::cout;
  words << "wrote " << options.out << " (" << HumanBytes(page.size()) << ")\n";
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
