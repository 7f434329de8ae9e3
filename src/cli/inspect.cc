// halflife inspect: says what a path is and what is in it.
#include <CLI/CLI.hpp>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/inspect/artifact.h"

namespace halflife::cli {
namespace {

struct Options {
  std::string path;
  bool json = false;
};

ExitCode Run(const Options& options) {
  using Json = nlohmann::ordered_json;
  if (options.json) {
    std::cout << inspect::Describe(options.path).dump(2, ' ', false, Json::error_handler_t::replace)
              << "\n";
  } else {
    std::cout << inspect::Text(options.path);
  }
  return ExitCode::kFinished;
}

// "A dataset is a folder ..."
std::string KnownForms() {
  std::string forms = "It knows: ";
  for (const inspect::Artifact& artifact : inspect::Artifacts()) {
    forms += std::string(artifact.kind) + " (" + artifact.form + "), ";
  }
  forms.replace(forms.size() - 2, 2, ".");
  return forms + " The keys of --json are in docs/inspect.md.";
}

}  // namespace

void AddInspect(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("inspect", "Say what a file or folder is and holds");
  DescribeUse(*command, {.notes = KnownForms(),
                         .examples = {"halflife inspect runs/first",
                                      "halflife inspect --json launch/recipes/gla_340m.textproto"},
                         .exit_codes = {ExitCode::kData, ExitCode::kCheckpointIo,
                                        ExitCode::kNoUsableCheckpoint}});
  command->add_option("PATH", options->path, "A file or folder")->type_name("PATH")->required();
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([=, &action] { action = [options] { return Run(*options); }; });
}

}  // namespace halflife::cli
