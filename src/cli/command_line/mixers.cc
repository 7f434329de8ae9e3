// halflife mixers: the mixers and the other parts that a model is made of.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {

void AddMixers(CLI::App& app, Request& request) {
  auto options = std::make_shared<MixersOptions>();
  CLI::App* command = app.add_subcommand("mixers", "List the mixers and other parts of a model");
  DescribeUse(*command,
              {.notes = "With NAME, a mixer or another part such as channel_mixer.glu: its "
                        "equation, what it costs in a model of model_dim 1024, the state that a "
                        "row carries, and every option with its type, default and meaning.",
               .examples = {"halflife mixers", "halflife mixers gla",
                            "halflife mixers channel_mixer.glu --json"}});
  command->add_option("NAME", options->name, "A mixer, or KIND.NAME of another part [list all]")
      ->type_name("NAME");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
