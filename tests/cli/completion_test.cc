// Runs the completion scripts in real shells, without a terminal. Shells that are not installed are
// skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <sstream>

#include "cli/command_line/completion/shells.h"
#include "cli/command_line/program.h"
#include "support/paths.h"
#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace halflife::cli::completion {
namespace {

using test::RunCommand;
using test::RunResult;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Not;
using testing::UnorderedElementsAre;

class CompletionTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(dir_ / "a folder");
    std::ofstream(dir_ / "a file") << "x";
    const auto script = RunCommand({test::kProgram, "completion", shell_});
    ASSERT_EQ(script.exit_code, 0) << script.err;
    std::ofstream(dir_ / "script") << script.out;
    if (RunCommand({shell_, "--version"}).exit_code != 0) {
      GTEST_SKIP() << shell_ << " is not installed";
    }
  }

  // Returns the lines that the shell prints.
  std::vector<std::string> Lines(const std::vector<std::string>& command) {
    const RunResult result = RunCommand(command, {.timeout_s = 30, .cwd = dir_.path().string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    std::vector<std::string> lines;
    std::istringstream stream(result.out);
    for (std::string line; std::getline(stream, line);) {
      if (!line.empty()) lines.push_back(line);
    }
    return lines;
  }

  const char* shell_ = "";
  test::TempDir dir_;
};

class BashCompletionTest : public CompletionTest {
 protected:
  BashCompletionTest() { shell_ = "bash"; }
  // `words` is the line as bash splits it. The last word is completed.
  std::vector<std::string> Complete(const std::vector<std::string>& words) {
    std::string line = "source ./script; COMP_WORDS=(halflife";
    for (const std::string& word : words) line += " '" + word + "'";
    line += "); COMP_CWORD=" + std::to_string(words.size()) +
            "; _halflife; printf '%s\\n' \"${COMPREPLY[@]}\"";
    return Lines({"bash", "--norc", "-euc", line});
  }
};

TEST_F(BashCompletionTest, Words) {
  EXPECT_THAT(Complete({"tr"}), ElementsAre("train"));
  EXPECT_THAT(Complete({""}), AllOf(Contains("prepare"), Contains("ckpt"), Contains("doctor")));
  EXPECT_THAT(Complete({"ckpt", "re"}), ElementsAre("reshard"));
  EXPECT_THAT(Complete({"train", "--con"}), ElementsAre("--config"));
  EXPECT_THAT(Complete({"ckpt", "verify", "--j"}), AllOf(Contains("--jobs"), Contains("--json")));
  EXPECT_THAT(Complete({"prepare", "--documents", "bl"}), ElementsAre("blank_lines"));
  EXPECT_THAT(Complete({"prepare", "--documents", "=", "fi"}), ElementsAre("file"));
  EXPECT_THAT(Complete({"prepare", "--documents", "="}), Contains("line"));
  EXPECT_THAT(Complete({"train", "--config", "a"}), UnorderedElementsAre("a file", "a folder"));
  EXPECT_THAT(Complete({"eval", "--model", "a"}), ElementsAre("a folder"));
  EXPECT_THAT(Complete({"inspect", "a"}), UnorderedElementsAre("a file", "a folder"));
  EXPECT_THAT(Complete({"ckpt", "ls", "a"}), ElementsAre("a folder"));
  EXPECT_THAT(Complete({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(Complete({"generate", "--prompt", "a"}), ElementsAre());  // Any text is valid.
  EXPECT_THAT(Complete({"eval", "--model", "train", "--con"}), ElementsAre());
}

class ZshCompletionTest : public CompletionTest {
 protected:
  ZshCompletionTest() { shell_ = "zsh"; }
  // zsh's own functions filter by the typed prefix. Here they print all candidates.
  std::vector<std::string> Complete(const std::vector<std::string>& words) {
    std::string line =
        "compdef() { :; }; compset() { :; }; _files() { print -- files $@; }; "
        "compadd() { shift; print -l -- $@; }; "
        "_describe() { print -l -- ${${(P)2}%%:*}; }; source ./script; words=(halflife";
    for (const std::string& word : words) line += " '" + word + "'";
    line += "); CURRENT=" + std::to_string(words.size() + 1) + "; _halflife";
    return Lines({"zsh", "-f", "-c", line});
  }
};

TEST_F(ZshCompletionTest, Words) {
  EXPECT_THAT(Complete({"tr"}), AllOf(Contains("train"), Contains("ckpt")));
  EXPECT_THAT(Complete({"ckpt", "re"}), AllOf(Contains("reshard"), Not(Contains("train"))));
  EXPECT_THAT(Complete({"train", "--con"}), AllOf(Contains("--config"), Not(Contains("--model"))));
  EXPECT_THAT(Complete({"prepare", "--documents", "bl"}),
              ElementsAre("blank_lines", "file", "line"));
  EXPECT_THAT(Complete({"prepare", "--documents=bl"}), Contains("blank_lines"));
  EXPECT_THAT(Complete({"train", "--config", "a"}), ElementsAre("files"));
  EXPECT_THAT(Complete({"eval", "--model", "a"}), ElementsAre("files -/"));
  EXPECT_THAT(Complete({"inspect", "a"}), ElementsAre("files"));
  EXPECT_THAT(Complete({"generate", "--prompt", "a"}), ElementsAre());
}

class FishCompletionTest : public CompletionTest {
 protected:
  FishCompletionTest() { shell_ = "fish"; }
  // Returns the offered words, without their descriptions.
  std::vector<std::string> Complete(const std::string& line) {
    std::vector<std::string> words =
        Lines({"fish", "--no-config", "-c", "source ./script; complete -C '" + line + "'"});
    for (std::string& word : words) word = word.substr(0, word.find('\t'));
    return words;
  }
};

TEST_F(FishCompletionTest, Words) {
  EXPECT_THAT(Complete("halflife tr"), ElementsAre("train"));
  EXPECT_THAT(Complete("halflife ckpt re"), ElementsAre("reshard"));
  EXPECT_THAT(Complete("halflife train --con"), ElementsAre("--config"));
  EXPECT_THAT(Complete("halflife prepare --documents bl"), ElementsAre("blank_lines"));
  EXPECT_THAT(Complete("halflife prepare --documents=fi"), ElementsAre("--documents=file"));
  EXPECT_THAT(Complete("halflife train --config a"), ElementsAre("a file", "a folder/"));
  EXPECT_THAT(Complete("halflife eval --model a"), ElementsAre("a folder/"));
  EXPECT_THAT(Complete("halflife inspect a"), ElementsAre("a file", "a folder/"));
  EXPECT_THAT(Complete("halflife generate --prompt a"), ElementsAre());
}

// Every script contains every subcommand and option of the program.
TEST(CompletionScripts, HoldTheWholeTree) {
  Request request;
  const std::unique_ptr<CLI::App> program = MakeProgram(request);
  const Node root = TreeOf(*program);
  ASSERT_GE(AllNodes(root).size(), 13u);
  for (const Shell& shell : Shells()) {
    const std::string script = shell.script(root);
    for (const Node* node : AllNodes(root)) {
      EXPECT_NE(script.find(node->path), std::string::npos) << shell.name << " " << node->path;
      for (const Option& option : node->options) {
        const std::string& name = option.names.back();
        const std::string form = std::string(shell.name) == "fish" ? "-l " + name.substr(2) : name;
        EXPECT_NE(script.find(form), std::string::npos) << shell.name << " " << name;
      }
    }
  }
}

TEST(CompletionScripts, AnotherShellIsRefused) {
  const RunResult result = RunCommand({test::kProgram, "completion", "csh"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, testing::HasSubstr("none of bash, zsh, fish"));
}

}  // namespace
}  // namespace halflife::cli::completion
