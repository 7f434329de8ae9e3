// What a command line is told that the program does not take: what was met, what would work.
#include "cli/command_line/refusal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>

#include "cli/command_line/option_value.h"
#include "cli/command_line/parse.h"
#include "cli/command_line/program.h"
#include "cli/command_line/value_checks.h"
#include "core/error.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

void Parse(std::vector<std::string> words) {
  words.insert(words.begin(), "halflife");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  Request request;
  ParseCommandLine(static_cast<int>(argv.size()), argv.data(), request);
}

TEST(Refusal, ANumberThatIsNone) {
  const std::vector<std::string> eval = {"eval", "--model", "m", "--data", "d"};
  const auto with = [&](const std::string& option, const std::string& value) {
    std::vector<std::string> words = eval;
    words.insert(words.end(), {option, value});
    Parse(words);
  };
  EXPECT_HL_ERROR(with("--windows", "x"), ExitCode::kUsage,
                  "`halflife eval` --windows: 'x' is no whole number; 0 or more would work",
                  "`halflife eval --help` has all that it takes");
  EXPECT_HL_ERROR(with("--windows", "-1"), ExitCode::kUsage,
                  "--windows: '-1' is too small; 0 or more would work");
  EXPECT_HL_ERROR(with("--batch", "1.5"), ExitCode::kUsage, "'1.5' is no whole number; 1 or more");
  EXPECT_HL_ERROR(with("--threads", "99999999999"), ExitCode::kUsage,
                  "--threads: '99999999999' is too large; e.g. 1 would work");
  EXPECT_HL_ERROR(with("--lengths", "256,y"), ExitCode::kUsage, "--lengths: 'y' is no whole");
  EXPECT_HL_ERROR(with("--depths", "0,2"), ExitCode::kUsage,
                  "--depths: '2' is too large; 0 to 1 would work");
  EXPECT_HL_ERROR(Parse({"train", "--config", "r", "--local-ranks", "0"}), ExitCode::kUsage,
                  "--local-ranks: '0' is too small; 1 to 1024 would work");
  EXPECT_HL_ERROR(Parse({"generate", "--model", "m", "--prompt", "p", "--temperature", "hot"}),
                  ExitCode::kUsage, "--temperature: 'hot' is no number; e.g. 1 would work");
  EXPECT_HL_ERROR(Parse({"generate", "--model", "m", "--prompt", "p", "--seed", "-3"}),
                  ExitCode::kUsage, "--seed: '-3' is too small; 0 or more would work");
  EXPECT_HL_ERROR(Parse({"export", "--run", "r", "--out", "o", "--max-shard", "5 apples"}),
                  ExitCode::kUsage, "--max-shard: '5 apples' is no size", "e.g. 500MB, 5GB");
}

TEST(Refusal, AChoiceThatIsNone) {
  EXPECT_HL_ERROR(Parse({"export", "--run", "r", "--out", "o", "--model-type", "gpt3"}),
                  ExitCode::kUsage,
                  "--model-type: 'gpt3' is none of auto, llama, transformer, gpt2, retnet, gla, "
                  "linear_attn, mamba; did you mean 'gpt2'?");
  Parse({"export", "--run", "r", "--out", "o", "--model-type", "gpt2"});
  EXPECT_HL_ERROR(Parse({"import", "--from", "f", "--out", "o", "--layout", "d3d"}),
                  ExitCode::kUsage, "--layout: 'd3d' is none of llama, ",
                  "torchscale_retnet; did you mean 'd2d'?");
  EXPECT_HL_ERROR(Parse({"prepare", "--out", "o", "--documents", "page"}), ExitCode::kUsage,
                  "--documents: 'page' is none of auto, blank-line, file, record");
}

TEST(Refusal, AFolderThatIsNone) {
  const test::TempDir dir;
  const std::string file = dir / "file";
  std::ofstream(file) << "text";
  EXPECT_HL_ERROR(Parse({"ckpt", "ls", "nope"}), ExitCode::kUsage,
                  "`halflife ckpt ls` RUN: there is no 'nope'; a run's folder, or its ckpt/, would "
                  "work");
  EXPECT_HL_ERROR(
      Parse({"ckpt", "verify", file}), ExitCode::kUsage, "STEP: '" + file,
      "' is no folder; a step's folder, or that of a run with a checkpoint, would work");
  EXPECT_HL_ERROR(Parse({"ckpt", "diff", dir.path()}), ExitCode::kUsage, "STEP has 1 value ('",
                  "'); 2 would work");
}

TEST(Refusal, OptionsThatBelongTogether) {
  EXPECT_HL_ERROR(Parse({"train", "--config", "r", "--plan", "gpus=4"}), ExitCode::kUsage,
                  "`halflife train` --plan does nothing without --dry-run; --dry-run beside it "
                  "would work");
  EXPECT_HL_ERROR(Parse({"train", "--config", "r", "--trace-steps", "4"}), ExitCode::kUsage,
                  "--trace-steps does nothing without --trace; --trace FILE beside it would work");
  EXPECT_HL_ERROR(Parse({"score", "--model", "m", "--out", "o", "--tokens", "t", "--text", "x"}),
                  ExitCode::kUsage,
                  "--tokens and --text exclude each other; one of them would work");
}

TEST(Refusal, WordsThatAreMissingOrTooMany) {
  EXPECT_HL_ERROR(Parse({"export"}), ExitCode::kUsage,
                  "`halflife export` needs --run RUN: A run (its newest step), or one step of it; "
                  "and --out DIR: The folder to make");
  EXPECT_HL_ERROR(Parse({}), ExitCode::kUsage, "`halflife` needs a subcommand: prepare, recipe, ");
  EXPECT_HL_ERROR(Parse({"ckpt"}), ExitCode::kUsage,
                  "`halflife ckpt` needs a subcommand: ls, inspect, verify");
  EXPECT_HL_ERROR(Parse({"train", "--config"}), ExitCode::kUsage,
                  "--config has no value; --config RECIPE would work");
  EXPECT_HL_ERROR(Parse({"train", "--config", "a", "--config", "b"}), ExitCode::kUsage,
                  "--config has 2 values ('a', 'b'); 1 would work");
  EXPECT_HL_ERROR(Parse({"train", "--config", "a", "b"}), ExitCode::kUsage,
                  "`halflife train` has no place for 'b'");
  EXPECT_HL_ERROR(Parse({"doctor", "fast"}), ExitCode::kUsage,
                  "`halflife doctor` has no place for 'fast'");
  EXPECT_HL_ERROR(Parse({"doctor", "-x"}), ExitCode::kUsage, "has no place for '-x'");
  EXPECT_HL_ERROR(Parse({"doctor", "--quick=maybe"}), ExitCode::kUsage, "--quick takes no value");
}

// Every option of every subcommand, with a value that few take and without one.
TEST(Refusal, NothingIsInCli11sWords) {
  Request request;
  const std::unique_ptr<CLI::App> program = MakeProgram(request);
  const auto refusal_of = [](const std::vector<std::string>& words) -> std::string {
    try {
      Parse(words);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.message();
    }
    return "";
  };
  const std::function<void(const CLI::App&, const std::vector<std::string>&)> check =
      [&](const CLI::App& app, const std::vector<std::string>& path) {
        for (const CLI::Option* option : app.get_options()) {
          if (option->get_positional() || ValueOf(*option).placeholder.empty()) continue;
          for (const std::string& tail : {std::string("=?"), std::string()}) {
            std::vector<std::string> words = path;
            words.push_back(option->get_name() + tail);
            const std::string message = refusal_of(words);
            SCOPED_TRACE(Join(words, " ") + "\n" + message);
            for (const char* theirs :
                 {"is required", "Could not convert", "not in", "e+308", "required", " requires ",
                  " excludes ", "were not expected", "Run with", "FAILED"})
              EXPECT_THAT(message, Not(HasSubstr(theirs)));
            if (tail.empty()) {
              EXPECT_THAT(message, HasSubstr(" has no value; "));
            }
          }
        }
        for (const CLI::App* sub : app.get_subcommands({})) {
          std::vector<std::string> longer = path;
          longer.push_back(sub->get_name());
          check(*sub, longer);
        }
      };
  check(*program, {});
}

TEST(ValueChecks, TakeWhatTheyOffer) {
  for (const char* good : {"0", "1024", "0x10"}) EXPECT_EQ(AtLeast(0)(good), "") << good;
  EXPECT_EQ(Between(1, 256)("256"), "");
  EXPECT_EQ(Between(1, 256)("257"), "'257' is too large; 1 to 256 would work");
  EXPECT_EQ(Between(1, 256)(""), "'' is no whole number; 1 to 256 would work");
  EXPECT_EQ(BetweenNumbers(0, 1)("0.25"), "");
  EXPECT_EQ(BetweenNumbers(0, 1)("nan"), "'nan' is no number; 0 to 1 would work");
  enum class Kind { kFirst = 3, kSecond = 7 };
  const CLI::Validator kind =
      OneOf(std::map<std::string, Kind>{{"first", Kind::kFirst}, {"second", Kind::kSecond}});
  std::string text = "second";
  EXPECT_EQ(kind(text), "");
  EXPECT_EQ(text, "7");
  EXPECT_EQ(kind(text), "'7' is none of first, second");
  for (const auto& [size, bytes] :
       {std::pair{"500", "500"}, {"5GB", "5000000000"}, {"4KiB", "4096"}}) {
    text = size;
    EXPECT_EQ(SizeInBytes()(text), "");
    EXPECT_EQ(text, bytes);
  }
}

}  // namespace
}  // namespace halflife::cli
