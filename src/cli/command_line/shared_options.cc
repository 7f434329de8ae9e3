#include "cli/command_line/shared_options.h"

#include <CLI/CLI.hpp>

#include "cli/command_line/value_checks.h"

namespace halflife::cli {

void AddTokenizer(CLI::App& command, std::string& tokenizer, const std::string& standard) {
  command.add_option("--tokenizer", tokenizer, Concat(kTokenizerHelp, " [", standard, "]"))
      ->type_name("FILE");
}

void AddSpecialTokens(CLI::App& command, data::SpecialTokens& special, const std::string& texts) {
  using data::SpecialTokens;
  const std::map<std::string, SpecialTokens> ways = {{"parse", SpecialTokens::kParse},
                                                     {"plain", SpecialTokens::kPlain}};
  command
      .add_option("--special-tokens", special,
                  Concat("How the names of special tokens, such as </s>, are read in ", texts,
                         ". parse: as these tokens, as Hugging Face tokenizers do. plain: as "
                         "characters"))
      ->transform(OneOf(ways))
      ->default_str(Name(special));
}

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
