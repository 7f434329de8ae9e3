// halflife mixers: lists the mixers and the other parts of a model.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {

void AddMixers(CLI::App& app, Request& request) {
  auto options = std::make_shared<MixersOptions>();
  CLI::App* command = app.add_subcommand("mixers", "List the mixers and other parts of a model");
  DescribeUse(
      *command,
      {.notes = "With the NAME of a mixer or another part, such as channel_mixer.glu, prints "
                "its equation, its cost in a model of model_dim 1024, its state per row, "
                "and every option with type, default and meaning.",
       .examples = {"halflife mixers", "halflife mixers gla",
                    "halflife mixers channel_mixer.glu --json"}});
  command
      ->add_option("NAME", options->name,
                   "Name of a mixer, or KIND.NAME of another part [list all]")
      ->type_name("NAME");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
