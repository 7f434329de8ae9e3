#include "cli/command_line/text_options.h"

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

}  // namespace halflife::cli
