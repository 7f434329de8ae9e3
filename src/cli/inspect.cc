// halflife inspect: identifies a path and shows its contents.
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/inspect/artifact.h"
#include "cli/run.h"
#include "core/json_text.h"

namespace halflife::cli {

ExitCode Run(const InspectOptions& options) {
  if (options.json) {
    std::cout << JsonText(inspect::Describe(options.path), 2) << "\n";
  } else {
    std::cout << inspect::Text(options.path);
  }
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
