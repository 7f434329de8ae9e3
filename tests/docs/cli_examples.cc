// The examples of the headers of src/cli. The parameters of a function are the variables that its
// example uses.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command_line/declare.h"
#include "cli/command_line/help.h"
#include "cli/command_line/options.h"
#include "cli/command_line/program.h"
#include "cli/eval_file.h"
#include "cli/model_source.h"
#include "cli/world.h"
#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "infer/model_loader.h"

namespace halflife::cli {

namespace declare_header {
#include "examples/cli/command_line/declare.h"
}

ExitCode EndOutputExample(const CompletionOptions& options) {
#include "examples/cli/command_line/program.h.3"
}

void BusyCoresExample(dist::RankContext& context, const GenerateOptions& options) {
#include "examples/cli/world.h"
}

void HelpExample(CLI::App* command){
#include "examples/cli/command_line/help.h"
}

ExitCode Run(std::monostate);
void OptionsExample(int argc, char** argv) {
#include "examples/cli/command_line/options.h"
}

int ParseExample(int argc, char** argv) {
#include "examples/cli/command_line/program.h"
  return 0;
}

void RefusalExample(CLI::App* program, int argc, char** argv) {
#include "examples/cli/command_line/program.h.2"
}

void RankZeroReportExample(const LauncherEvidence& launcher, const Error& error) {
#include "examples/cli/command_line/program.h.4"
}

void EvalFileExample(const EvalFile::Json& facts, const EvalFile::Json& row) {
#include "examples/cli/eval_file.h"
}

void SharedFactsExample(dist::RankContext& context, const infer::LoadedModel& loaded) {
#include "examples/cli/model_source.h"
}

}  // namespace halflife::cli
