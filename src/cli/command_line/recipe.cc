// halflife recipe: a recipe with every option in force, or all there are.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {

void AddRecipe(CLI::App& app, Request& request) {
  auto options = std::make_shared<RecipeOptions>();
  CLI::App* command = app.add_subcommand("recipe", "Print a recipe with every option in force");
  DescribeUse(
      *command,
      {.notes = "Without --config: every option of a run with its default, of parts (mixers, "
                "norms, ...) those in force; `halflife mixers NAME` has the others'. What "
                "is printed is a recipe. A vocabulary of 0 is the dataset's.",
       .examples = {"halflife recipe --explain", "halflife recipe --set model.mixer=gla",
                    "halflife recipe --config launch/recipes/gla_340m.textproto",
                    "halflife recipe --config launch/recipes/gla_340m.textproto --config "
                    "changes.textproto"}});
  command
      ->add_option("--config", options->configs,
                   "The recipe; may be repeated: a later file changes fields of the earlier ones, "
                   "and the merged recipe is printed [none]")
      ->type_name("RECIPE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command
      ->add_option("--set", options->overrides,
                   "Overrides a field of the recipe, e.g. optimizer.lr=3e-4; may be repeated")
      ->type_name("NAME=VALUE")
      ->take_all();
  command->add_flag("--explain", options->explain, "Say of every option what it is");
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
