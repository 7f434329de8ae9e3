// halflife recipe: prints a recipe with every option in effect, or with all options.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {

void AddRecipe(CLI::App& app, Request& request) {
  auto options = std::make_shared<RecipeOptions>();
  CLI::App* command = app.add_subcommand("recipe", "Print a recipe with every option in effect");
  DescribeUse(
      *command,
      {.notes =
           "Without --config, prints every option of a run with its default, for the model parts "
           "(mixers, norms, ...) in use. For other parts, see `halflife mixers NAME`. The "
           "output is a recipe. A vocabulary of 0 means the dataset's.",
       .examples = {"halflife recipe --explain", "halflife recipe --set model.mixer=gla",
                    "halflife recipe --config launch/recipes/gla_340m.textproto",
                    "halflife recipe --config launch/recipes/gla_340m.textproto --config "
                    "changes.textproto"}});
  command
      ->add_option(
          "--config", options->configs,
          "The recipe. May be repeated: later files override fields of earlier ones, and the "
          "merged recipe is printed [none]")
      ->type_name("RECIPE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command
      ->add_option("--set", options->overrides,
                   "Override a field of the recipe, e.g. optimizer.lr=3e-4; may be repeated")
      ->type_name("NAME=VALUE")
      ->take_all();
  command->add_flag("--explain", options->explain, "Add the meaning of every option as a comment");
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
