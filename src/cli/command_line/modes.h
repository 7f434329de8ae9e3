// Which options of a subcommand do something in which of its modes. A mode is an option that turns
// it on, "--synthetic", or one value of that option, "--labels classes". What is given outside its
// mode would be ignored, so it is refused, also with the value that it has without being given.
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
  // `command` has all its options, and outlives this.
  explicit Modes(const CLI::App& command) : command_(&command) {}

  // The options below a headline of --help.
  std::vector<std::string> Group(const std::string& headline) const;

  // An option that is its own mode is left out, so that a mode's group may hold it.
  void OnlyWith(const std::string& mode, const std::vector<std::string>& options);
  // `instead`: what takes these options, "--input PATH"; without, they are taken where `mode` is
  // not given.
  void NotWith(const std::string& mode, const std::vector<std::string>& options,
               const std::string& instead = "");

  // Once the command line is read. Throws the first option that its mode does not go with, as a
  // CLI::ParseError that says what would work.
  void Require() const;

 private:
  struct Mode {
    const CLI::Option* option;
    std::string value;  // empty: any
    bool IsOn() const;
    std::string Words() const;  // "--labels classes"
  };
  struct Rule {
    const CLI::Option* option;
    Mode mode;
    bool with;  // or without
    std::string instead;
  };

  Mode Parse(const std::string& mode) const;
  std::string Problem(const Rule& rule) const;
  // "--retrieval mqar --lengths N,... beside it".
  std::string WhatWouldWork(const Mode& mode) const;
  // `mode`, and the modes that its option goes with and that are off.
  std::vector<Mode> Missing(const Mode& mode) const;

  const CLI::App* command_;
  std::vector<Rule> rules_;
};

}  // namespace halflife::cli
