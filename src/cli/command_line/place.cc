#include "cli/command_line/place.h"

#include <CLI/CLI.hpp>

#include "cli/command_line/value_checks.h"

namespace halflife::cli {

void AddPlace(CLI::App& command, PlaceOptions& place) {
  command
      .add_option("--device", place.device,
                  "Where the model computes; auto: on a GPU where one is visible, each rank of a "
                  "machine on the next")
      ->check(OneOf({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--precision", place.precision,
                  "What it computes in, as train.precision says of training")
      ->check(OneOf({"fp32", "bf16"}))
      ->capture_default_str();
}

}  // namespace halflife::cli
