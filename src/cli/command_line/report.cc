// halflife report: one HTML page about sweeps, runs and evaluations.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {

void AddReport(CLI::App& app, Request& request) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command =
      app.add_subcommand("report", "One HTML page about sweeps, runs and evaluations");
  DescribeUse(
      *command,
      {.notes =
           "Folders of sweeps and runs and files of `halflife eval --lengths N,... --out FILE` "
           "may be given together. A sweep is shown with its metric over each axis, its "
           "tables, which link to the runs, and the curves of its best runs; runs are "
           "compared; evaluations by length are drawn in one picture. What still trains is "
           "shown as far as it is. A path that is none of these is left out with a warning. "
           "The page holds everything that it shows and loads nothing. With --out FILE.svg "
           "only the picture of evaluations is written.",
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
                   "The page to write, or a picture (.svg); - is standard output")
      ->type_name("FILE")
      ->required();
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
