// Determines which options of a subcommand have an effect in which of its modes. A mode is an
// option that enables it ("--synthetic"), or one value of that option ("--labels classes"). An
// option outside its mode would have no effect, so it is refused, even if its value is the default.
//
//   Modes modes(command);
//   modes.OnlyWith("--retrieval mqar", {"--pairs"});  // the narrowest mode of an option first
//   modes.OnlyWith("--retrieval", modes.Group("What is hidden"));
//   modes.NotWith("--retrieval", {"--windows", "--recall"});
//   command.callback([=, &request] { modes.Require(); request = *options; });
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace halflife::cli {

class Modes {
 public:
  // `command` has all its options and outlives this object.
  explicit Modes(const CLI::App& command) : command_(&command) {}

  // Returns the options below a headline of --help.
  std::vector<std::string> Group(const std::string& headline) const;

  // Allows the options only in this mode. The mode's own option is skipped, so a whole help group
  // can be passed.
  void OnlyWith(const std::string& mode, const std::vector<std::string>& options);
  // Refuses the options in this mode. `instead` is the mode that accepts them, for example "--input
  // PATH". Without it, they are accepted if `mode` is not given.
  void NotWith(const std::string& mode, const std::vector<std::string>& options,
               const std::string& instead = "");

  // Call after parsing. Throws a CLI::ParseError for the first option outside its mode, with the
  // correct form.
  void Require() const;

 private:
  struct Mode {
    const CLI::Option* option;
    std::string value;  // Empty: any value.
    bool IsOn() const;
    std::string Words() const;  // For example "--labels classes".
  };
  struct Rule {
    const CLI::Option* option;
    Mode mode;
    bool with;  // Whether the option needs the mode or excludes it.
    std::string instead;
  };

  Mode Parse(const std::string& mode) const;
  std::string Problem(const Rule& rule) const;
  // Returns for example "--retrieval mqar --lengths N,... with it".
  std::string WhatWouldWork(const Mode& mode) const;
  // Returns `mode`, and the modes that its option needs and that are off.
  std::vector<Mode> Missing(const Mode& mode) const;

  const CLI::App* command_;
  std::vector<Rule> rules_;
};

}  // namespace halflife::cli
