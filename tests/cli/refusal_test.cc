// Errors about the command line: each names the faulty argument and the fix.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "cli/command_line/declare.h"
#include "cli/command_line/program.h"
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
                  "`halflife eval` --windows: 'x' is not a whole number. Use 0 or more.",
                  "`halflife eval --help` lists all options");
  EXPECT_HL_ERROR(with("--windows", "-1"), ExitCode::kUsage,
                  "--windows: '-1' is too small. Use 0 or more.");
  EXPECT_HL_ERROR(with("--batch", "1.5"), ExitCode::kUsage,
                  "'1.5' is not a whole number. Use 1 or more");
  EXPECT_HL_ERROR(with("--threads", "1025"), ExitCode::kUsage,
                  "--threads: '1025' is too large. Use 0 to 1024.");
  EXPECT_HL_ERROR(Parse({"ckpt", "prune", ".", "--keep-last", "1"}), ExitCode::kUsage,
                  "--keep-last: '1' is too small. Use 2 or more.");
  EXPECT_HL_ERROR(Parse({"prepare", "--out", "o", "--threads", "-1"}), ExitCode::kUsage,
                  "--threads: '-1' is too small. Use 0 to 1024.");
  EXPECT_HL_ERROR(with("--lengths", "256,y"), ExitCode::kUsage, "--lengths: 'y' is not a whole");
  EXPECT_HL_ERROR(with("--depths", "0,2"), ExitCode::kUsage,
                  "--depths: '2' is too large. Use 0 to 1.");
  EXPECT_HL_ERROR(Parse({"train", "--config", "r", "--local-ranks", "0"}), ExitCode::kUsage,
                  "--local-ranks: '0' is too small. Use 1 to 1024.");
  EXPECT_HL_ERROR(Parse({"generate", "--model", "m", "--prompt", "p", "--temperature", "hot"}),
                  ExitCode::kUsage, "--temperature: 'hot' is not a number. Use for example 1.");
  EXPECT_HL_ERROR(Parse({"generate", "--model", "m", "--prompt", "p", "--seed", "-3"}),
                  ExitCode::kUsage, "--seed: '-3' is too small. Use 0 or more.");
  EXPECT_HL_ERROR(Parse({"export", "--run", "r", "--out", "o", "--max-shard", "5 apples"}),
                  ExitCode::kUsage, "--max-shard: '5 apples' is not a size",
                  "for example 500MB, 5GB");
}

TEST(Refusal, AChoiceThatIsNone) {
  EXPECT_HL_ERROR(Parse({"export", "--run", "r", "--out", "o", "--model-type", "gpt3"}),
                  ExitCode::kUsage,
                  "--model-type: 'gpt3' is none of auto, llama, mistral, qwen3, qwen2, "
                  "transformer, gpt2, retnet, gla, linear_attn, delta_net, gated_deltanet, "
                  "gated_deltaproduct, qwen3_5_text, qwen3_next, olmo_hybrid, kda, kimi_linear, "
                  "hgrn2, gsa, rwkv, rwkv7, mamba, mamba2, nemotron_h, granitemoehybrid, bamba, "
                  "falcon_h1. Use one of them; did you mean 'gpt2'?");
  Parse({"export", "--run", "r", "--out", "o", "--model-type", "gpt2"});
  EXPECT_HL_ERROR(Parse({"import", "--from", "f", "--out", "o", "--layout", "d3d"}),
                  ExitCode::kUsage, "--layout: 'd3d' is none of llama, ",
                  "torchscale_retnet. Use one of them; did you mean 'd2d'?");
  EXPECT_HL_ERROR(Parse({"prepare", "--out", "o", "--documents", "page"}), ExitCode::kUsage,
                  "--documents: 'page' is none of blank_lines, file, line. Use one of them.");
}

TEST(Refusal, AFolderThatIsNone) {
  const test::TempDir dir;
  const std::string file = dir / "file";
  std::ofstream(file) << "text";
  EXPECT_HL_ERROR(Parse({"ckpt", "ls", "nope"}), ExitCode::kUsage,
                  "`halflife ckpt ls` RUN: there is no 'nope'. Use a run's folder, or its ckpt/.");
  EXPECT_HL_ERROR(Parse({"ckpt", "verify", file}), ExitCode::kUsage, "STEP: '" + file,
                  "' is not a folder. Use a step's folder, the folder of a run with a checkpoint, "
                  "or RUN@best.");
  EXPECT_HL_ERROR(Parse({"ckpt", "diff", dir.path()}), ExitCode::kUsage, "STEP has 1 value ('",
                  "'). Give 2.");
}

TEST(Refusal, OptionsThatExcludeEachOther) {
  const auto exclude = [](const std::vector<std::string>& words, const std::string& both) {
    EXPECT_HL_ERROR(Parse(words), ExitCode::kUsage, both + " exclude each other. Use one of them.");
  };
  exclude({"score", "--model", "m", "--out", "o", "--tokens", "t", "--text", "x"},
          "--tokens and --text");
  exclude({"eval", "--model", "m", "--data", "d", "--text", "x"}, "--data and --text");
  exclude({"eval", "--model", "m", "--data", "d", "--explain", "f", "--lengths", "4"},
          "--explain and --lengths");
  exclude({"prepare", "--out", "o", "--input", "i", "--synthetic", "mqar"},
          "--input and --synthetic");
  exclude({"prepare", "--out", "o", "--labels", "classes", "--synthetic", "mqar"},
          "--synthetic and --labels");
  exclude({"generate", "--model", "m", "--chat", "--no-cuda-graph"}, "--no-cuda-graph and --chat");
  exclude({"generate", "--model", "m", "--prompts", "p", "--no-cuda-graph"},
          "--prompts and --no-cuda-graph");
  exclude({"prepare", "--out", "o", "--tokenizer", "bytes", "--train-tokenizer"},
          "--tokenizer and --train-tokenizer");
}

using Words = std::vector<std::string>;

// Options that belong to one mode: a command line that only lacks the mode, its error, and a
// command line that accepts them.
struct OptionsOfMode {
  Words outside, options;
  std::string refusal;  // After "OPTION does nothing". Or the option that excludes them.
  Words inside;
};

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kEval = {"eval", "--model", "m"}, kPrepare = {"prepare", "--out", "o"};
const Words kTables = kEval + Words{"--data", "d", "--lengths", "4"};
const Words kOfText = kPrepare + Words{"--input", "i"};
const Words kOfTask = kPrepare + Words{"--synthetic", "mqar"};
const Words kOfAnswers = kOfText + Words{"--labels", "answers"};
const Words kOfMessages = kOfText + Words{"--labels", "messages"};
const Words kOfPreferences = kOfText + Words{"--labels", "preferences"};
const Words kOfClasses = kOfText + Words{"--labels", "classes"};

std::vector<OptionsOfMode> OptionsOfEval() {
  const Words data = kEval + Words{"--data", "d"};
  const Words passkey = kTables + Words{"--retrieval", "passkey"};
  const Words mqar = kTables + Words{"--retrieval", "mqar"};
  const Words of_losses = {"--protocol", "--bin", "--recall", "--attention"};
  return {
      {kEval + Words{"--text", "t"},
       {"--split", "--bigram"},
       "without --data. Use --data DATASET instead of --text.",
       data},
      {kEval, {"--bigram"}, "without --data. Use --data DATASET with it.", data},
      {data,
       {"--top"},
       "without --explain. Use --explain FILE with it.",
       data + Words{"--explain", "f"}},
      {data + Words{"--explain", "f"}, {"--batch", "--bigram"}, "--explain", data},
      {data, Words{"--method", "--out", "--csv", "--figure", "--retrieval"} + of_losses,
       "without --lengths. Use --lengths N,... with it.", kTables},
      {data + Words{"--explain", "f"},
       {"--recall"},
       "without --lengths. Use --lengths N,... instead of --explain.",
       kTables},
      {kTables, {"--seq-len", "--bigram"}, "--lengths", data},
      {kTables,
       {"--depths", "--samples", "--seed"},
       "without --retrieval. Use --retrieval passkey|mqar|multi_key|multi_value|variables with it.",
       passkey},
      {data,
       {"--depths", "--samples", "--seed"},
       "without --retrieval. Use --retrieval passkey|mqar|multi_key|multi_value|variables "
       "--lengths N,... with it.",
       mqar},
      {data,
       {"--pairs"},
       "without --retrieval mqar. Use --retrieval mqar --lengths N,... with it.",
       mqar},
      {passkey, {"--pairs"}, "with --retrieval passkey. Use --retrieval mqar.", mqar},
      {mqar, Words{"--windows"} + of_losses, "--retrieval", kTables},
  };
}

std::vector<OptionsOfMode> OptionsOfPrepare() {
  return {
      {kOfText,
       {"--vocab-size", "--seq-len", "--num-pairs", "--power", "--random-non-queries",
        "--generator", "--examples", "--validation-examples", "--test-examples", "--seed"},
       "without --synthetic. Use --synthetic mqar instead of --input.",
       kOfTask},
      {kOfTask,
       {"--tokenizer", "--train-tokenizer", "--documents", "--dedup", "--field", "--invalid-utf8",
        "--max-document-bytes", "--validation-input", "--validation-fraction", "--split-seed",
        "--validation-tail", "--in-place", "--resumable"},
       "--synthetic",
       kOfText},
      {kOfTask,
       {"--vocab"},
       "without --train-tokenizer. Use --train-tokenizer instead of --synthetic.",
       kOfText + Words{"--train-tokenizer"}},
      {kOfText + Words{"--tokenizer", "bytes"},
       {"--vocab"},
       "without --train-tokenizer. Use --train-tokenizer instead of --tokenizer.",
       kOfText + Words{"--train-tokenizer"}},
      {kOfText + Words{"--validation-input", "v"},
       {"--validation-fraction", "--split-seed", "--validation-tail"},
       "--validation-input",
       kOfText},
      {kOfText + Words{"--validation-tail", "0.1"},
       {"--validation-fraction", "--split-seed"},
       "--validation-tail",
       kOfText},
      {kOfText,
       {"--row-len", "--too-long", "--test-input"},
       "without --labels. Use --labels classes|answers|messages|preferences with it.",
       kOfAnswers},
      {kOfText,
       {"--label-field", "--classes"},
       "without --labels classes. Use --labels classes with it.",
       kOfClasses},
      {kOfAnswers,
       {"--label-field", "--classes"},
       "with --labels answers. Use --labels classes.",
       kOfClasses},
      {kOfText,
       {"--prompt-field", "--answer-field", "--special-tokens"},
       "without --labels answers. Use --labels answers with it.",
       kOfAnswers},
      {kOfClasses,
       {"--prompt-field", "--answer-field", "--special-tokens"},
       "with --labels classes. Use --labels answers.",
       kOfAnswers},
      {kOfText,
       {"--messages-field", "--template"},
       "without --labels messages. Use --labels messages with it.",
       kOfMessages},
      {kOfAnswers,
       {"--messages-field", "--template"},
       "with --labels answers. Use --labels messages.",
       kOfMessages},
      {kOfMessages,
       {"--chosen-field", "--rejected-field"},
       "with --labels messages. Use --labels preferences.",
       kOfPreferences},
      {kOfAnswers, {"--field"}, "with --labels answers. Use --labels classes.", kOfClasses},
      {kOfClasses,
       {"--vocab"},
       "without --train-tokenizer. Use --train-tokenizer instead of --labels.",
       kOfText + Words{"--train-tokenizer"}},
      {kOfClasses,
       {"--train-tokenizer", "--documents", "--validation-tail", "--in-place", "--resumable"},
       "--labels",
       kOfText},
  };
}

std::vector<OptionsOfMode> OptionsOfOthers() {
  const Words train = {"train", "--config", "r"}, score = {"score", "--model", "m", "--out", "o"};
  const Words dry_run = train + Words{"--dry-run"};
  return {
      {train,
       {"--trace-steps"},
       "without --trace. Use --trace FILE with it.",
       train + Words{"--trace", "t"}},
      {train, {"--plan"}, "without --dry-run. Use --dry-run with it.", dry_run},
      {train,
       {"--json"},
       "without --plan. Use --plan KEY=VALUE,... --dry-run with it.",
       dry_run + Words{"--plan", "p"}},
      {train,
       {"--init-map", "--init-allow-missing", "--init-allow-unexpected", "--init-new-rows"},
       "without --init-from. Use --init-from RUN with it.",
       train + Words{"--init-from", "f"}},
      {score + Words{"--tokens", "t"},
       {"--tokenizer", "--special-tokens"},
       "without --text. Use --text FILE instead of --tokens.",
       score + Words{"--text", "t"}},
  };
}

// Returns a valid value of the option: its default if it has one.
Words WithItsDefault(const CLI::Option& option) {
  const OptionValue value = ValueOf(option);
  std::string standard = option.get_default_str();
  if (standard.starts_with("[")) standard = standard.substr(1, standard.size() - 2);
  if (!standard.empty()) return {option.get_name(), standard};
  if (value.placeholder.empty()) return {option.get_name()};
  return {option.get_name(), value.choices.empty() ? "1" : value.choices.front()};
}

class OutsideItsMode : public testing::Test {
 protected:
  static void Check(const std::vector<OptionsOfMode>& rows) {
    Request request;
    const std::unique_ptr<CLI::App> program = MakeProgram(request);
    for (const OptionsOfMode& row : rows) {
      const CLI::App* const command = program->get_subcommand(row.outside.front());
      for (const std::string& name : row.options) {
        const Words given = WithItsDefault(*command->get_option(name));
        SCOPED_TRACE(Join(row.outside + given, " "));
        if (row.refusal.starts_with("--")) {
          EXPECT_HL_ERROR(Parse(row.outside + given), ExitCode::kUsage, name, row.refusal,
                          " exclude each other. Use one of them.");
        } else {
          EXPECT_HL_ERROR(
              Parse(row.outside + given), ExitCode::kUsage,
              "`halflife " + command->get_name() + "` " + name + " does nothing " + row.refusal);
        }
        Parse(row.outside);
        Parse(row.inside + given);
      }
    }
  }
};

TEST_F(OutsideItsMode, AnOptionIsRefused) {
  Check(OptionsOfEval());
  Check(OptionsOfPrepare());
  Check(OptionsOfOthers());
}

// A new option must declare its modes: in a row above, or as one of these words.
TEST_F(OutsideItsMode, NoOptionIsForgotten) {
  const std::map<std::string, std::pair<std::vector<OptionsOfMode>, std::set<std::string>>> all = {
      {"eval",
       {OptionsOfEval(),
        {"--help", "--model", "--data", "--text", "--tokenizer", "--threads", "--json", "--explain",
         "--device", "--precision", "--lengths", "--tasks", "--weights"}}},
      {"prepare",
       {OptionsOfPrepare(),
        {"--help", "--out", "--input", "--threads", "--shard-tokens", "--synthetic", "--labels"}}}};
  Request request;
  const std::unique_ptr<CLI::App> program = MakeProgram(request);
  for (const auto& [name, of_command] : all) {
    const auto& [rows, of_all_modes] = of_command;
    for (const CLI::Option* option : program->get_subcommand(name)->get_options()) {
      const std::string word = "--" + option->get_lnames().front();
      const bool of_mode = std::ranges::any_of(rows, [&](const OptionsOfMode& row) {
        return std::ranges::count(row.options, word) > 0;
      });
      EXPECT_NE(of_mode, of_all_modes.contains(word)) << name << " " << word;
    }
  }
}

TEST(Refusal, WordsThatAreMissingOrTooMany) {
  EXPECT_HL_ERROR(Parse({"export"}), ExitCode::kUsage,
                  "`halflife export` needs --run RUN: A run (its newest step), RUN@best or "
                  "RUN@1200, or a step's folder; "
                  "and --out DIR: The folder to create");
  EXPECT_HL_ERROR(Parse({}), ExitCode::kUsage, "`halflife` needs a subcommand: prepare, recipe, ");
  EXPECT_HL_ERROR(Parse({"ckpt"}), ExitCode::kUsage,
                  "`halflife ckpt` needs a subcommand: ls, inspect, verify");
  EXPECT_HL_ERROR(Parse({"train", "--config"}), ExitCode::kUsage,
                  "--config has no value. Use --config RECIPE.");
  EXPECT_HL_ERROR(Parse({"train", "--config", "a", "--run", "b", "--run", "c"}), ExitCode::kUsage,
                  "--run has 2 values ('b', 'c'). Give 1.");
  EXPECT_NO_THROW(Parse({"train", "--config", "a", "--config", "b"}));
  EXPECT_HL_ERROR(
      Parse({"train", "--config", "a", "b"}), ExitCode::kUsage,
      "`halflife train` does not accept 'b'. Remove it, or write its option before it.");
  EXPECT_HL_ERROR(Parse({"doctor", "fast"}), ExitCode::kUsage,
                  "`halflife doctor` does not accept 'fast'");
  EXPECT_HL_ERROR(Parse({"doctor", "-x"}), ExitCode::kUsage, "does not accept '-x'");
  EXPECT_HL_ERROR(Parse({"doctor", "--quick=maybe"}), ExitCode::kUsage,
                  "--quick takes no value. Remove it.");
}

// Passes every option of every subcommand without a value, and with a value that few options
// accept.
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
              EXPECT_THAT(message, HasSubstr(" has no value. "));
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
  EXPECT_EQ(Between(1, 256)("257"), "'257' is too large. Use 1 to 256.");
  EXPECT_EQ(Between(1, 256)(""), "'' is not a whole number. Use 1 to 256.");
  EXPECT_EQ(BetweenNumbers(0, 1)("0.25"), "");
  EXPECT_EQ(BetweenNumbers(0, 1)("nan"), "'nan' is not a number. Use 0 to 1.");
  const CLI::Validator kind = NamedValue({{"first", 3}, {"second", 7}});
  std::string text = "second";
  EXPECT_EQ(kind(text), "");
  EXPECT_EQ(text, "7");
  EXPECT_EQ(kind(text), "'7' is none of first, second. Use one of them.");
  for (const auto& [size, bytes] :
       {std::pair{"500", "500"}, {"5GB", "5000000000"}, {"4KiB", "4096"}}) {
    text = size;
    EXPECT_EQ(SizeInBytes()(text), "");
    EXPECT_EQ(text, bytes);
  }
  for (const char* bad : {"-1", "99999999999999999999", "17179869184GiB", "0.5MB", ""}) {
    text = bad;
    EXPECT_EQ(SizeInBytes()(text),
              Concat("'", bad,
                     "' is not a size. Use bytes, or a whole number and a unit, "
                     "for example 500MB, 5GB or 4GiB."));
  }
}

}  // namespace
}  // namespace halflife::cli
