// halflife recipe: prints a recipe with every option in effect, or with all options.
#include <iostream>

#include "cli/run.h"
#include "train/config/plan.h"
#include "train/config/run_config.h"

namespace halflife::cli {

ExitCode Run(const RecipeOptions& options) {
  const train::RunConfig config = train::LoadRunConfig(
      std::vector<std::filesystem::path>{options.configs.begin(), options.configs.end()},
      options.overrides);
  const train::RunConfig whole = train::WithDerivedOptions(config);
  std::cout << (options.explain ? train::ExplainedText(whole) : train::ToText(whole));
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
