#include "cli/command_line/modes.h"

#include <CLI/CLI.hpp>

#include "cli/command_line/help.h"
#include "core/concat.h"

namespace halflife::cli {

bool Modes::Mode::IsOn() const {
  return option->count() > 0 && (value.empty() || option->results().back() == value);
}

std::string Modes::Mode::Words() const {
  return value.empty() ? option->get_name() : Concat(option->get_name(), " ", value);
}

std::vector<std::string> Modes::Group(const std::string& headline) const {
  std::vector<std::string> names;
  for (const CLI::Option* option : command_->get_options())
    if (option->get_group() == headline) names.push_back(option->get_name());
  return names;
}

Modes::Mode Modes::Parse(const std::string& mode) const {
  const size_t space = mode.find(' ');
  return {.option = command_->get_option(mode.substr(0, space)),
          .value = space == std::string::npos ? "" : mode.substr(space + 1)};
}

void Modes::OnlyWith(const std::string& mode, const std::vector<std::string>& options) {
  const Mode parsed = Parse(mode);
  for (const std::string& name : options) {
    const CLI::Option* const option = command_->get_option(name);
    if (option != parsed.option)
      rules_.push_back({.option = option, .mode = parsed, .with = true, .instead = ""});
  }
}

void Modes::NotWith(const std::string& mode, const std::vector<std::string>& options,
                    const std::string& instead) {
  for (const std::string& name : options)
    rules_.push_back({.option = command_->get_option(name),
                      .mode = Parse(mode),
                      .with = false,
                      .instead = instead});
}

std::vector<Modes::Mode> Modes::Missing(const Mode& mode) const {
  std::vector<Mode> missing = {mode};
  for (const Rule& rule : rules_) {
    if (!rule.with || rule.option != mode.option || rule.mode.IsOn()) continue;
    for (const Mode& further : Missing(rule.mode)) missing.push_back(further);
  }
  return missing;
}

std::string Modes::WhatWouldWork(const Mode& mode) const {
  std::vector<std::string> words, in_place_of;
  for (const Mode& missing : Missing(mode)) {
    words.push_back(missing.value.empty() ? UsageOf(*missing.option) : missing.Words());
    for (const CLI::Option* other : missing.option->get_excludes())
      if (other->count() > 0) in_place_of.push_back(other->get_name());
  }
  return Concat(Join(words, " "), in_place_of.empty() ? " with it" : " instead of ",
                Join(in_place_of, " and "));
}

std::string Modes::Problem(const Rule& rule) const {
  const Mode& mode = rule.mode;
  const bool given = mode.option->count() > 0;
  // A choice is shown with its value, a file name is not.
  const std::string met = given && !ValueOf(*mode.option).choices.empty()
                              ? Mode{mode.option, mode.option->results().back()}.Words()
                              : mode.option->get_name();
  std::string works = mode.Words();  // If the option has another value.
  if (!rule.with) {
    works = rule.instead.empty() ? Concat("it without ", mode.option->get_name(), "")
                                 : Concat(rule.instead, " instead of ", met);
  } else if (!given) {
    works = WhatWouldWork(mode);
  }
  return Concat(rule.option->get_name(), " does nothing ",
                given ? "with " + met : "without " + mode.Words(), ". Use ", works, ".");
}

void Modes::Require() const {
  for (const Rule& rule : rules_)
    if (rule.option->count() > 0 && rule.with != rule.mode.IsOn())
      throw CLI::ParseError(Problem(rule), CLI::ExitCodes::ValidationError);
}

}  // namespace halflife::cli
