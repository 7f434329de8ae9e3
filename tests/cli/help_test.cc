// --help of every subcommand: each option has a description and its default, the exit codes are
// listed, and the examples parse.
#include "cli/command_line/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "cli/command_line/program.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "train/config/foreign_names.h"

namespace halflife::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

// Collects the program and all its subcommands, at any depth.
void Collect(const CLI::App* app, std::vector<const CLI::App*>& all) {
  all.push_back(app);
  for (const CLI::App* command : app->get_subcommands({})) Collect(command, all);
}

std::string FullName(const CLI::App* app) {
  return app->get_parent() == nullptr ? app->get_name()
                                      : FullName(app->get_parent()) + " " + app->get_name();
}

// Splits a shell command without variables into words. Only quotes are special.
std::vector<std::string> ShellWords(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  char quote = 0;
  bool open = false;
  for (const char c : line) {
    if (quote != 0 ? c == quote : c == '\'' || c == '"') {
      quote = quote == 0 ? c : '\0';
      open = true;
    } else if (quote == 0 && c == ' ') {
      if (open) words.push_back(word);
      word.clear();
      open = false;
    } else {
      word += c;
      open = true;
    }
  }
  if (open) words.push_back(word);
  return words;
}

// Returns the examples of a help text: lines with two spaces and "halflife ". A final backslash
// joins lines.
std::vector<std::string> Examples(const std::string& help) {
  std::vector<std::string> examples;
  std::istringstream lines(help);
  bool joins = false;
  for (std::string line; std::getline(lines, line);) {
    const bool begins = line.starts_with("  halflife ") || line.starts_with("  mpirun ") ||
                        line.starts_with("  launch/");
    if (!begins && !joins) continue;
    if (begins) {
      examples.emplace_back();
    }
    joins = line.ends_with("\\");
    examples.back() += " " + line.substr(0, line.size() - (joins ? 1 : 0));
  }
  return examples;
}

class HelpTest : public testing::Test {
 protected:
  void SetUp() override {
    old_ = std::filesystem::current_path();
    std::filesystem::current_path(dir_.path());
    Collect(program_.get(), all_);
  }
  void TearDown() override { std::filesystem::current_path(old_); }

  // Returns CLI11's error, or "" if the example parses. Creates folders that the example names.
  static std::string ParseError(const std::string& example) {
    std::vector<std::string> words = ShellWords(example);
    const auto program_at = std::find(words.begin(), words.end(), "halflife");
    if (program_at == words.end()) return "does not call halflife";
    words.erase(words.begin(), program_at + 1);
    words.erase(std::find(words.begin(), words.end(), ">"), words.end());
    for (const std::string& word : words) {
      if (word.starts_with("runs/")) std::filesystem::create_directories(word);
    }
    std::reverse(words.begin(), words.end());  // As CLI11 expects them.
    Request request;
    const std::unique_ptr<CLI::App> program = MakeProgram(request);
    try {
      program->parse(words);
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return std::holds_alternative<std::monostate>(request) ? "chooses no subcommand" : "";
  }

  test::TempDir dir_;
  std::filesystem::path old_;
  Request request_;
  std::unique_ptr<CLI::App> program_ = MakeProgram(request_);
  std::vector<const CLI::App*> all_;
};

TEST_F(HelpTest, EveryOptionIsDescribedWithItsDefault) {
  for (const CLI::App* app : all_) {
    SCOPED_TRACE(FullName(app));
    EXPECT_GT(app->get_description().size(), 8u);
    EXPECT_LE(app->get_description().size(), 70u) << "one line in the list of subcommands";
    for (const CLI::Option* option : app->get_options()) {
      SCOPED_TRACE(option->get_name());
      const std::string description = option->get_description();
      EXPECT_GT(description.size(), 3u) << "no description";
      if (ValueOf(*option).placeholder.empty() || option->get_required() ||
          option->get_expected_max() == CLI::detail::expected_max_vector_size) {
        continue;
      }
      EXPECT_TRUE(!option->get_default_str().empty() || description.ends_with("]"))
          << "no default: use capture_default_str(), or end the description with [...]";
    }
  }
}

// Errors about other trainers' names point to options, which must exist.
TEST_F(HelpTest, AnswersToForeignNamesNameOptions) {
  int num_options = 0;
  for (const train::ForeignName& foreign : train::ForeignNames()) {
    const std::string place = foreign.place;
    const size_t space = place.find(' ');
    if (space == std::string::npos) continue;
    ++num_options;
    EXPECT_NE(program_->get_subcommand(place.substr(0, space))
                  ->get_option_no_throw(place.substr(space + 1)),
              nullptr)
        << place;
  }
  EXPECT_GE(num_options, 4);
}

TEST_F(HelpTest, EverySubcommandHasExitCodesAndExamplesThatParse) {
  ASSERT_GE(all_.size(), 13u);
  for (const CLI::App* app : all_) {
    SCOPED_TRACE(FullName(app));
    const std::string help = app->help();
    EXPECT_THAT(help, HasSubstr("\nExit codes:\n    0  finished\n")) << "see DescribeUse";
    const std::vector<std::string> examples = Examples(help);
    EXPECT_FALSE(examples.empty()) << "see DescribeUse";
    bool calls_itself = false;
    for (const std::string& example : examples) {
      EXPECT_EQ(ParseError(example), "") << example;
      EXPECT_EQ(std::count(example.begin(), example.end(), '\'') % 2, 0) << example;
      calls_itself = calls_itself || example.find(FullName(app) + " ") != std::string::npos;
    }
    EXPECT_TRUE(calls_itself);
  }
}

TEST_F(HelpTest, DefaultsAndListsHaveOneForm) {
  for (const CLI::App* app : all_) {
    EXPECT_THAT(app->help(), Not(HasSubstr("[["))) << FullName(app);
    EXPECT_THAT(app->help(), Not(HasSubstr("... ..."))) << FullName(app);
  }
  const std::string eval = program_->get_subcommand("eval")->help();
  EXPECT_THAT(eval, HasSubstr("--depths DEPTH,...  "));
  EXPECT_THAT(eval, HasSubstr("[0,0.25,0.5,0.75,1]"));
  EXPECT_THAT(program_->get_subcommand("prepare")->help(), HasSubstr("[messages]"));
}

TEST_F(HelpTest, LinesFitTheTerminal) {
  for (const CLI::App* app : all_) {
    std::istringstream help(app->help());
    for (std::string line; std::getline(help, line);) {
      if (line.find("halflife ") != std::string::npos) continue;  // An example is one line to copy.
      EXPECT_LE(line.size(), 100u) << FullName(app) << ": " << line;
    }
  }
}

TEST_F(HelpTest, TheProgramShowsTheWayThrough) {
  const std::string help = program_->help();
  size_t at = 0;
  for (const char* step :
       {"halflife prepare ", "halflife train ", "halflife eval ", "halflife generate "}) {
    const size_t next = help.find(step, at);
    ASSERT_NE(next, std::string::npos) << step;
    at = next;
  }
  for (const ExitCode code : AllExitCodes()) {
    EXPECT_THAT(help, HasSubstr(ExitCodeLines({code}).substr(0, ExitCodeLines({code}).size() - 1)));
  }
}

TEST_F(HelpTest, AMisspeltWordGetsASuggestion) {
  const auto check = [&](const std::vector<std::string>& words) { CheckWords(*program_, words); };
  EXPECT_HL_ERROR(check({"trian"}), ExitCode::kUsage, "'trian' is not a subcommand of `halflife`",
                  "did you mean 'train'?", "The subcommands are prepare, ");
  EXPECT_HL_ERROR(check({"finetune_lora"}), ExitCode::kUsage, "'finetune_lora' is not a subcommand",
                  ". Use `halflife train --init-from RUN --set lora.rank=8`");
  EXPECT_HL_ERROR(check({"ckpt", "veryfy", "x"}), ExitCode::kUsage,
                  "'veryfy' is not a subcommand of `halflife ckpt`; did you mean 'verify'?");
  EXPECT_HL_ERROR(check({"train", "--confg=x"}), ExitCode::kUsage,
                  "'--confg' is not an option of `halflife train`; did you mean '--config'?");
  EXPECT_HL_ERROR(check({"train", "--data", "x"}), ExitCode::kUsage,
                  ". Set fields of the recipe by --set, for example --set data.path=DATASET");
  EXPECT_HL_ERROR(check({"fly"}), ExitCode::kUsage, "'fly' is not a subcommand");
  check({"train", "--config", "trian", "--set", "a=--b"});
  check({"generate", "--prompt", "x", "--", "--confg"});
}

TEST_F(HelpTest, TheFormOfAValue) {
  CLI::App app("app", "app");
  int number = 0;
  std::string text;
  std::vector<std::string> many;
  bool flag = false;
  const auto* range = app.add_option("--number", number, "x")->check(CLI::Range(1, 256));
  EXPECT_EQ(ValueOf(*range).placeholder, "N");
  EXPECT_EQ(ValueOf(*range).range, "1 to 256");
  const auto* choice = app.add_option("--shell", text, "x")->check(CLI::IsMember({"a", "b"}));
  EXPECT_EQ(ValueOf(*choice).choices, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(ValueOf(*choice).placeholder, "a|b");
  const auto* folder = app.add_option("runs", many, "x")->type_name("RUN");
  EXPECT_EQ(ValueOf(*folder).path, OptionValue::Path::kFolder);
  EXPECT_EQ(ValueOf(*app.add_flag("--flag", flag, "x")).placeholder, "");
}

TEST_F(HelpTest, TextIsWrappedAtSpaces) {
  EXPECT_EQ(WrapText("aa bb cc dd", 5, 8, 3), "aa bb\n   cc dd");
  EXPECT_EQ(WrapText("aaaaaaaa b", 3, 8, 3), "aaaaaaaa\n   b");
  EXPECT_EQ(WrapText("", 3, 8, 3), "");
}

}  // namespace
}  // namespace halflife::cli
