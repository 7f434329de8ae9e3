// The subcommands recipe, mixers and inspect.
#include <nlohmann/json.hpp>

#include <iostream>

#include "cli/command_line/options.h"
#include "cli/inspect/artifact.h"
#include "cli/part_report.h"
#include "core/json_text.h"
#include "train/config/plan.h"
#include "train/config/run_config.h"

namespace halflife::cli {

// halflife recipe: prints a recipe with every option in effect, or with all options.
ExitCode Run(const RecipeOptions& options) {
  const train::RunConfig config = train::LoadRunConfig(
      std::vector<std::filesystem::path>{options.configs.begin(), options.configs.end()},
      options.overrides);
  const train::RunConfig whole = train::WithDerivedOptions(config);
  std::cout << (options.explain ? train::ExplainedText(whole) : train::ToText(whole));
  return ExitCode::kFinished;
}

// halflife mixers: lists the mixers and the other parts of a model.
ExitCode Run(const MixersOptions& options) {
  const bool all = options.name.empty();
  const nlohmann::ordered_json json = all ? DescribeParts() : DescribePart(options.name);
  if (options.json) {
    std::cout << json.dump(2) << "\n";
  } else {
    std::cout << (all ? PartsText(json) : PartText(json));
  }
  return ExitCode::kFinished;
}

// halflife inspect: identifies a path and shows its contents.
ExitCode Run(const InspectOptions& options) {
  if (options.samples > 0) {
    std::cout << (options.json
                      ? JsonText(inspect::DescribeSamples(options.path, options.samples), 2) + "\n"
                      : inspect::SamplesText(options.path, options.samples));
  } else if (options.json) {
    std::cout << JsonText(inspect::Describe(options.path), 2) << "\n";
  } else {
    std::cout << inspect::Text(options.path);
  }
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
