#include "cli/command_line/place.h"

#include <CLI/CLI.hpp>

#include "cli/command_line/value_checks.h"

namespace halflife::cli {

void AddPlace(CLI::App& command, PlaceOptions& place) {
  command
      .add_option(
          "--device", place.device,
          "Device of the computation. auto: a GPU if one is visible; the ranks of a machine "
          "use different GPUs")
      ->check(OneOf({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--precision", place.precision,
                  "Type of the computation, like train.precision in training")
      ->check(OneOf({"fp32", "bf16"}))
      ->capture_default_str();
}

}  // namespace halflife::cli
