// halflife report: writes one HTML page about sweeps, runs and evaluations.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {

void AddReport(CLI::App& app, Request& request) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command =
      app.add_subcommand("report", "Write one HTML page about sweeps, runs and evaluations");
  DescribeUse(
      *command,
      {.notes =
           "Accepts folders of sweeps and runs, and files of `halflife eval --lengths N,... --out "
           "FILE`, together. For a sweep, the page shows its metric over each axis, its tables "
           "with links to the runs, and the curves of its best runs. Runs are compared. "
           "Evaluations by length share one picture. Unfinished runs are shown up to their "
           "newest step. Other paths are skipped with a warning. The page is self-contained. "
           "With --out FILE.svg, only the picture of evaluations is written.",
       .examples = {"halflife report runs/gla runs/retention --out report.html",
                    "halflife report sweeps/lr runs/gla lengths/gla.json --out report.html",
                    "halflife report lengths/gla.json lengths/rope.json --out lengths.svg"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment}});
  command
      ->add_option("RUN", options->runs,
                   "Folders of sweeps and of runs, finished or not, and files of `eval --out`")
      ->type_name("RUN")
      ->required();
  command
      ->add_option("--out", options->out,
                   "The page (or picture, .svg) to write; - is standard output")
      ->type_name("FILE")
      ->required();
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
