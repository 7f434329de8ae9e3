// halflife recipe: a recipe with every option in force, or all there are.
#include <CLI/CLI.hpp>

#include <iostream>

#include "cli/command.h"
#include "train/plan.h"

namespace halflife::cli {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
};

ExitCode Run(const Options& options) {
  const train::RunConfig config = options.config.empty()
                                      ? train::ParseRunConfig("", "the defaults", options.overrides)
                                      : train::LoadRunConfig(options.config, options.overrides);
  std::cout << train::ToText(train::WithMixerDefaults(config));
  return ExitCode::kFinished;
}

}  // namespace

void AddRecipe(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("recipe", "Print a recipe with every option in force");
  DescribeUse(
      *command,
      {.notes = "Without --config: every option there is, with its default. What is printed "
                "is a recipe. A vocabulary of 0 is the dataset's.",
       .examples = {"halflife recipe --set model.mixer.name=gla",
                    "halflife recipe --config launch/recipes/gla_340m.textproto"}});
  command->add_option("--config", options->config, "The recipe [none]")->type_name("RECIPE");
  command
      ->add_option("--set", options->overrides,
                   "Overrides a field of the recipe, e.g. optimizer.lr=3e-4; may be repeated")
      ->type_name("NAME=VALUE")
      ->take_all();
  command->callback([=, &action] { action = [options] { return Run(*options); }; });
}

}  // namespace halflife::cli
