// halflife inspect: says what a path is and what is in it.
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/inspect/artifact.h"
#include "cli/run.h"

namespace halflife::cli {

ExitCode Run(const InspectOptions& options) {
  using Json = nlohmann::ordered_json;
  if (options.json) {
    std::cout << inspect::Describe(options.path).dump(2, ' ', false, Json::error_handler_t::replace)
              << "\n";
  } else {
    std::cout << inspect::Text(options.path);
  }
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
