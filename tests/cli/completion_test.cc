// Shell completion: its candidates, and its scripts in real shells, without a terminal. Shells that
// are not installed are skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cli/command_line/program.h"
#include "core/concat.h"
#include "support/paths.h"
#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace halflife::cli {
namespace {

using test::RunCommand;
using test::RunResult;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::UnorderedElementsAreArray;
using Words = std::vector<std::string>;

std::string Candidates(const Words& words) {
  Request request;
  return CompletionCandidates(*MakeProgram(request), words);
}

TEST(Candidates, FollowTheWordsBeforeThem) {
  EXPECT_THAT(Candidates({""}), AllOf(StartsWith("prepare\tTokenize text"), HasSubstr("\nckpt\t")));
  EXPECT_THAT(Candidates({"ckpt", "re"}), AllOf(HasSubstr("reshard\t"), Not(HasSubstr("train\t"))));
  EXPECT_THAT(Candidates({"train", "--con"}),
              AllOf(HasSubstr("\n--config\tThe recipe"), Not(HasSubstr("--model"))));
  for (const Words& words : {Words{"prepare", "--documents", "f"},
                             {"prepare", "--documents", "="},
                             {"prepare", "--documents", "=", "f"}})
    EXPECT_EQ(Candidates(words), "blank_lines\nfile\nline\n");
  EXPECT_THAT(Candidates({"prepare", "--documents=f"}), HasSubstr("--documents=file\n"));
  EXPECT_EQ(Candidates({"train", "--config", "a"}), ":files\n");
  EXPECT_EQ(Candidates({"train", "--config=a"}), ":files\n");
  EXPECT_EQ(Candidates({"eval", "--model", "a"}), ":folders\n");
  EXPECT_EQ(Candidates({"inspect", "a"}), ":files\n");
  EXPECT_EQ(Candidates({"ckpt", "ls", "a"}), ":folders\n");
  EXPECT_EQ(Candidates({"completion", ""}), "bash\nzsh\nfish\n");
  EXPECT_EQ(Candidates({"generate", "--prompt", "a"}), "");  // Any text is valid.
  EXPECT_THAT(Candidates({"eval", "--model", "train", "--con"}), Not(HasSubstr("--config")));
}

TEST(Candidates, HoldTheWholeTree) {
  Request request;
  const std::unique_ptr<CLI::App> program = MakeProgram(request);
  const std::function<void(const CLI::App&, const Words&)> check = [&](const CLI::App& app,
                                                                       const Words& path) {
    const auto with = [&](const std::string& last) {
      Words words = path;
      words.push_back(last);
      return "\n" + CompletionCandidates(*program, words);
    };
    for (const CLI::Option* option : app.get_options())
      if (!option->get_positional()) {
        EXPECT_THAT(with("--"), HasSubstr("\n" + option->get_name() + "\t")) << app.get_name();
      }
    for (const CLI::App* command : app.get_subcommands({})) {
      EXPECT_THAT(with(""), HasSubstr("\n" + command->get_name() + "\t"));
      Words longer = path;
      longer.push_back(command->get_name());
      check(*command, longer);
    }
  };
  check(*program, {});
}

struct Shell {
  std::string name;
  Words (*command)(const Words& words);  // Prints the candidates for the last of the words.
  Words files, folders;                  // As the shell prints "a file" and "a folder".
};

std::string Quoted(const Words& words) {
  return Join(words, " ", [](const std::string& word) { return "'" + word + "'"; });
}

const Shell kShells[] = {
    {"bash",
     [](const Words& words) {
       return Words{"bash", "--norc", "-euc",
                    Concat("source ./script; COMP_WORDS=(halflife ", Quoted(words),
                           "); COMP_CWORD=", words.size(),
                           "; _halflife; printf '%s\\n' \"${COMPREPLY[@]}\"")};
     },
     {"a file", "a folder"},
     {"a folder"}},
    // zsh's own functions are replaced by ones that print all candidates.
    {"zsh",
     [](const Words& words) {
       return Words{"zsh", "-f", "-c",
                    Concat("compdef() { :; }; compset() { :; }; _files() { print -- files $@; }; "
                           "_describe() { print -l -- ${${(P)2}%%:*}; }; source ./script; "
                           "words=(halflife ",
                           Quoted(words), "); CURRENT=", words.size() + 1, "; _halflife")};
     },
     {"files"},
     {"files -/"}},
    {"fish",
     [](const Words& words) {
       return Words{"fish", "--no-config", "-c",
                    Concat("source ./script; complete -C 'halflife ", Join(words, " "), "'")};
     },
     {"a file", "a folder/"},
     {"a folder/"}},
};

class ShellCompletion : public testing::TestWithParam<Shell> {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(dir_ / "a folder");
    std::ofstream(dir_ / "a file") << "x";
    const RunResult script = RunCommand({test::kProgram, "completion", GetParam().name});
    ASSERT_EQ(script.exit_code, 0) << script.err;
    std::ofstream(dir_ / "script") << script.out;
    if (RunCommand({GetParam().name, "--version"}).exit_code != 0)
      GTEST_SKIP() << GetParam().name << " is not installed";
  }

  // Returns the offered words that begin with the last word.
  Words Complete(const Words& words) {
    const std::string path =
        std::filesystem::path(test::kProgram).parent_path().string() + ":" + std::getenv("PATH");
    const RunResult result =
        RunCommand(GetParam().command(words),
                   {.timeout_s = 30, .env = {{"PATH", path}}, .cwd = dir_.path().string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    Words offered;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      line = line.substr(0, line.find('\t'));
      const bool is_path = line.starts_with("files");
      if (!line.empty() && (is_path || line.starts_with(words.back()))) offered.push_back(line);
    }
    return offered;
  }
  test::TempDir dir_;
};

TEST_P(ShellCompletion, OffersCandidatesAndPaths) {
  const std::pair<Words, Words> cases[] = {{{"tr"}, {"train"}},
                                           {{"ckpt", "re"}, {"reshard"}},
                                           {{"train", "--con"}, {"--config"}},
                                           {{"ckpt", "verify", "--j"}, {"--jobs", "--json"}},
                                           {{"prepare", "--documents", "bl"}, {"blank_lines"}},
                                           {{"completion", ""}, {"bash", "zsh", "fish"}},
                                           {{"train", "--config", "a"}, GetParam().files},
                                           {{"eval", "--model", "a"}, GetParam().folders},
                                           {{"inspect", "a"}, GetParam().files},
                                           {{"generate", "--prompt", "a"}, {}}};
  for (const auto& [words, offered] : cases)
    EXPECT_THAT(Complete(words), UnorderedElementsAreArray(offered)) << Join(words, " ");
  const bool splits = GetParam().name == "bash";  // At the equals sign.
  EXPECT_THAT(Complete(splits ? Words{"prepare", "--documents", "=", "fi"}
                              : Words{"prepare", "--documents=fi"}),
              UnorderedElementsAreArray({splits ? "file" : "--documents=file"}));
}

INSTANTIATE_TEST_SUITE_P(All, ShellCompletion, testing::ValuesIn(kShells),
                         [](const auto& shell) { return shell.param.name; });

TEST(CompletionScript, AnotherShellIsRefused) {
  const RunResult result = RunCommand({test::kProgram, "completion", "csh"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("none of bash, zsh, fish. Use one of them"));
}

}  // namespace
}  // namespace halflife::cli
