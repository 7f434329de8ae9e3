// halflife inspect: identifies a path and shows its contents.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {
namespace {

struct Form {
  const char* kind;
  const char* form;
};
constexpr Form kForms[] = {
#define HL_ARTIFACT(kind, form, ...) {kind, form},
#include "cli/inspect/artifacts.inc"
#undef HL_ARTIFACT
};

// Returns "It knows: run (a run's folder ...), ...".
std::string KnownForms() {
  std::string forms = "It knows: ";
  for (const Form& row : kForms) forms += std::string(row.kind) + " (" + row.form + "), ";
  forms.replace(forms.size() - 2, 2, ".");
  return forms + " The keys of --json are in docs/inspect.md.";
}

}  // namespace

void AddInspect(CLI::App& app, Request& request) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      app.add_subcommand("inspect", "Identify a file or folder and show its contents");
  DescribeUse(*command, {.notes = KnownForms(),
                         .examples = {"halflife inspect runs/first",
                                      "halflife inspect --json launch/recipes/gla_340m.textproto"},
                         .exit_codes = {ExitCode::kData, ExitCode::kCheckpointIo,
                                        ExitCode::kNoUsableCheckpoint}});
  command->add_option("PATH", options->path, "A file or folder")->type_name("PATH")->required();
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
