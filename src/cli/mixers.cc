// halflife mixers: lists the mixers and the other parts of a model.
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/part_report.h"
#include "cli/run.h"

namespace halflife::cli {

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

}  // namespace halflife::cli
