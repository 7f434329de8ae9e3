// halflife report: one HTML page about runs.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {

void AddReport(CLI::App& app, Request& request) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command =
      app.add_subcommand("report", "One HTML page about runs: curves, speed, a comparison");
  DescribeUse(
      *command,
      {.notes = "The page holds everything it shows and loads nothing. Runs that still train are "
                "shown as far as they are; a folder that is no run is left out with a warning. "
                "Files of `halflife eval --lengths N,... --out FILE` add curves by length, of all "
                "files in one picture; with --out FILE.svg the picture is written alone.",
       .examples = {"halflife report runs/gla runs/retention --out report.html",
                    "halflife report lengths/gla.json lengths/rope.json --out lengths.svg"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment}});
  command
      ->add_option("RUN", options->runs,
                   "Folders of runs, finished or not, and files of `eval --out`")
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
