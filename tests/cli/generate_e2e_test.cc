// eval, generate and inspect on a small trained run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "data/small_bpe.h"
#include "data/tokenizer.h"
#include "interop/small_sentencepiece.h"
#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Generate : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    ExpectExit(fixture->Run({.run = "run", .set = {"train.steps=60", "ckpt.every=0"}}), 0);
  }
  static RunResult Text(const std::vector<std::string>& more) {
    return Halflife(Append({"generate", "--model", Path("run"), "--prompt", "the river",
                            "--max-tokens", "60", "--ignore-eos"},
                           more));
  }
};

TEST_F(Generate, IsAFunctionOfTheSeed) {
  const RunResult a = ExpectExit(Text({"--seed", "1"}), 0), b = Text({"--seed", "1"}),
                  c = Text({"--seed", "2"});
  EXPECT_EQ(a.out.find("the river"), 0u) << a.out;
  EXPECT_GT(a.out.size(), 30u);
  EXPECT_EQ(a.out, b.out);
  EXPECT_NE(a.out, c.out);
}

TEST_F(Generate, StatsAndGreedy) {
  ExpectExit(Text({"--temperature", "0", "--stats"}), 0, {"tokens/s", "state"});
}

TEST_F(Generate, BadFlags) {
  ExpectExit(Text({"--top-p", "2"}), 2, {"top-p is 2"});
  ExpectExit(Halflife({"generate", "--model", Path("run"), "--prompt", ""}), 2,
             {"prompt is empty"});
  ExpectExit(Halflife({"generate", "--model", Path("nothing"), "--prompt", "a"}), 76);
}

// A text does not depend on the other prompts, on their order or on --batch.
TEST_F(Generate, PromptsOfAFileInBatches) {
  const auto run = [&](const std::vector<std::string>& prompts,
                       const std::vector<std::string>& more) {
    std::ofstream file(fixture->path("prompts.jsonl"));
    for (size_t i = 0; i < prompts.size(); ++i)
      file << (i % 2 == 0 ? nlohmann::json(prompts[i]) : nlohmann::json{{"prompt", prompts[i]}})
           << "\n\n";
    file.close();
    const RunResult result =
        ExpectExit(Halflife(Append({"generate", "--model", Path("run"), "--prompts",
                                    Path("prompts.jsonl"), "--max-tokens", "30", "--seed", "4",
                                    "--temperature", "0.4", "--ignore-eos"},
                                   more)),
                   0);
    std::map<std::string, nlohmann::json> texts;
    std::istringstream lines(result.out);
    size_t number = 0;
    for (std::string line; std::getline(lines, line); ++number) {
      const nlohmann::json json = nlohmann::json::parse(line);
      EXPECT_EQ(json["prompt"], prompts.at(number)) << "in the order of the file";
      texts[json["prompt"]] = json;
    }
    EXPECT_EQ(number, prompts.size());
    return texts;
  };
  std::vector<std::string> prompts = {"the river",      "a", "once upon a time there was", "the",
                                      "of the sea and", "x"};
  const auto texts = run(prompts, {"--batch", "4"});
  EXPECT_EQ(texts.at("the river")["new_tokens"], 30);
  EXPECT_EQ(texts.at("the river")["finish_reason"], "length");
  std::ranges::reverse(prompts);
  EXPECT_EQ(run(prompts, {"--batch", "1"}), texts);
  const auto alone = run({"a"}, {});
  EXPECT_EQ(alone.at("a"), texts.at("a"));

  const std::string text = texts.at("the river")["text"], stop = text.substr(5, 3);
  const auto stopped = run({"the river"}, {"--stop", stop});
  EXPECT_EQ(stopped.at("the river")["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped.at("the river")["finish_reason"], "stop");
  EXPECT_NE(run({"the river"}, {"--repetition-penalty", "1.5"}), texts);
}

TEST_F(Generate, SeveralSamplesOfAPromptHaveSeedsInOrder) {
  const std::string first = ExpectExit(Text({"--seed", "5"}), 0).out,
                    second = ExpectExit(Text({"--seed", "6"}), 0).out;
  EXPECT_EQ(ExpectExit(Text({"--seed", "5", "--samples", "2"}), 0).out, first + "---\n" + second);

  std::ofstream(fixture->path("two.jsonl")) << "\"the river\"\n\"a\"\n";
  const auto texts = [&](const char* seed, const char* samples) {
    std::istringstream lines(
        ExpectExit(Halflife({"generate", "--model", Path("run"), "--prompts", Path("two.jsonl"),
                             "--max-tokens", "20", "--seed", seed, "--samples", samples}),
                   0)
            .out);
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  };
  const auto five = texts("5", "1"), six = texts("6", "1");
  EXPECT_EQ(texts("5", "2"),
            (std::vector<nlohmann::json>{five.at(0), six.at(0), five.at(1), six.at(1)}));
  ExpectExit(Halflife({"generate", "--model", Path("run"), "--chat", "--samples", "2"}), 2,
             {"--samples does not apply to a conversation. Use --chat with --prompts FILE.jsonl."});
}

TEST_F(Generate, JsonAndStopOfOnePrompt) {
  const std::string whole = ExpectExit(Text({"--temperature", "0"}), 0).out;
  const nlohmann::json json =
      nlohmann::json::parse(ExpectExit(Text({"--temperature", "0", "--json"}), 0).out);
  EXPECT_EQ(json["prompt"].get<std::string>() + json["text"].get<std::string>() + "\n", whole);
  EXPECT_EQ(json["finish_reason"], "length");
  const std::string text = json["text"], stop = text.substr(4, 2);
  EXPECT_EQ(ExpectExit(Text({"--temperature", "0", "--stop", stop}), 0).out,
            "the river" + text.substr(0, text.find(stop)) + "\n");
}

TEST_F(Generate, FilesThatAreNoPrompts) {
  const auto refused = [&](const std::string& content, const std::string& message) {
    std::ofstream(fixture->path("bad.jsonl")) << content;
    ExpectExit(Halflife({"generate", "--model", Path("run"), "--prompts", Path("bad.jsonl")}), 3,
               {message});
  };
  refused("\"fine\"\n{\"text\": \"a\"}\n", "bad.jsonl, line 2: not a prompt. Write a JSON string");
  refused("[1, 2]\n", "line 1: not a prompt");
  refused("\n", "has no prompt");
  refused("\"\"\n", "prompt 1: the prompt is empty");
  ExpectExit(Halflife({"generate", "--model", Path("run")}), 2,
             {"Use --prompt TEXT, --prompts FILE.jsonl or --chat."});
  ExpectExit(Text({"--stop", ""}), 2, {"--stop is empty"});
}

TEST_F(Generate, APromptThatTheTokenizerCannotRead) {
  proto::sentencepiece::ModelProto pieces = interop::test::SmallSentencePiece(true);
  pieces.mutable_trainer_spec()->set_byte_fallback(false);
  pieces.mutable_pieces()->DeleteSubrange(3, 256);
  const std::filesystem::path folder = fixture->path("no_fallback");
  std::filesystem::create_directory(folder);
  data::MakeSentencePieceTokenizer(pieces.SerializeAsString())->Save(folder);
  const auto generate = [&](const char* prompt) {
    return Halflife({"generate", "--model", Path("run"), "--tokenizer", folder, "--prompt", prompt,
                     "--max-tokens", "2"});
  };
  ExpectExit(generate("a\xff"), 2, {"not UTF-8 from byte 1 on"});
  const RunResult unknown = ExpectExit(generate("ab \u00e9\u4e2d c\u00e9"), 2,
                                       {"no tokens for: '\u00e9', '\u4e2d'. Use text without"});
  EXPECT_EQ(unknown.out, "");
  ExpectExit(generate("ab c"), 0);

  ExpectExit(
      Halflife({"generate", "--model", Path("run"), "--prompt", "a\xff", "--max-tokens", "2"}), 0);
}

// Writes a folder with a tokenizer.json whose ids are bytes, with <|end|> = 256 as the eos token.
std::filesystem::path WriteByteBpe(const std::filesystem::path& folder) {
  nlohmann::ordered_json json = data::test::SmallBpeJson();
  nlohmann::ordered_json& vocab = json["model"]["vocab"];
  for (const nlohmann::ordered_json& merge : json["model"]["merges"])
    vocab.erase(merge[0].get<std::string>() + merge[1].get<std::string>());
  json["model"]["merges"] = nlohmann::ordered_json::array();
  json["added_tokens"] = {json["added_tokens"][0]};
  json["added_tokens"][0]["id"] = 256;
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "tokenizer.json") << json;
  std::ofstream(folder / "tokenizer_config.json") << R"({"eos_token": "<|end|>"})";
  return folder;
}

TEST_F(Generate, ATokenizerIsNamedAsForPrepare) {
  const std::filesystem::path bpe = WriteByteBpe(fixture->path("bpe"));
  proto::sentencepiece::ModelProto pieces = interop::test::SmallSentencePiece(true);
  pieces.mutable_trainer_spec()->set_byte_fallback(false);
  pieces.mutable_pieces()->DeleteSubrange(3, 256);
  const std::filesystem::path model = Path("pieces.model"), text = fixture->path("ab.txt");
  std::ofstream(model, std::ios::binary) << pieces.SerializeAsString();
  std::ofstream(text) << "ab abc";
  std::filesystem::create_directory(fixture->path("spm"));
  std::filesystem::copy(model, fixture->path("spm") / "tokenizer.model");
  const std::string run = fixture->path("run");
  for (const std::string& tokenizer :
       {std::string("bytes"), (fixture->path("data") / "tokenizer").string(), bpe.string(),
        (bpe / "tokenizer.json").string(), model.string(), Path("spm")}) {
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"generate", "--prompt", "ab c", "--max-tokens", "2"},
          {"eval", "--text", text, "--seq-len", "2"},
          {"score", "--text", text, "--out", "-"}}) {
      const RunResult result =
          Halflife(Append(command, {"--model", run, "--tokenizer", tokenizer}));
      EXPECT_EQ(result.exit_code, 0) << command[0] << " with " << tokenizer << ": " << result.err;
    }
  }
}

TEST_F(Generate, NamesOfSpecialTokens) {
  const std::filesystem::path bpe = WriteByteBpe(fixture->path("named"));
  const std::filesystem::path text = fixture->path("chat.txt");
  std::ofstream(text) << "a<|end|>b";
  const auto score = [&](const std::vector<std::string>& more) {
    const RunResult result = ExpectExit(
        Halflife(Append(
            {"score", "--model", Path("run"), "--tokenizer", bpe, "--text", text, "--out", "-"},
            more)),
        0);
    return std::pair(nlohmann::json::parse(result.out)["ids"].get<std::vector<int>>(), result.err);
  };
  EXPECT_EQ(score({}).first, (std::vector<int>{'a', 256, 'b'}));
  const auto [plain, warning] = score({"--special-tokens", "plain"});
  EXPECT_EQ(plain.size(), 9u);
  EXPECT_EQ(std::ranges::count(plain, 256), 0);
  EXPECT_THAT(warning,
              HasSubstr("[warning] score: --text contains names of special tokens, which are read "
                        "as characters: '<|end|>' (1 time). Use --special-tokens parse to read "
                        "them as these tokens."));

  const auto prompt_tokens = [&](const char* special_tokens) {
    const RunResult result =
        Halflife({"generate", "--model", Path("run"), "--tokenizer", bpe, "--prompt", "a<|end|>b",
                  "--max-tokens", "1", "--stats", "--special-tokens", special_tokens});
    EXPECT_EQ(result.out.find("a<|end|>b"), 0u) << result.out;
    return result.err;
  };
  EXPECT_NE(prompt_tokens("parse").find("prompt  3 tokens"), std::string::npos);
  EXPECT_EQ(prompt_tokens("parse").find("warning"), std::string::npos);
  EXPECT_NE(prompt_tokens("plain").find("prompt  9 tokens"), std::string::npos);
  EXPECT_NE(prompt_tokens("plain").find("--prompt contains names of special tokens"),
            std::string::npos);

  // eval and prepare treat the text as plain, and warn.
  const RunResult eval = Halflife(
      {"eval", "--model", Path("run"), "--tokenizer", bpe, "--text", text, "--seq-len", "4"});
  EXPECT_THAT(eval.err,
              HasSubstr("'<|end|>' (1 time). Remove them from the text if they are markup."));
  std::ofstream(fixture->path("pairs.tsv")) << "prompt\tanswer\na<|end|>\tb\n";
  for (const char* special_tokens : {"parse", "plain"}) {
    const RunResult prepared =
        ExpectExit(Halflife({"prepare", "--labels", "answers", "--input", Path("pairs.tsv"),
                             "--validation-fraction", "0", "--row-len", "16", "--tokenizer", bpe,
                             "--special-tokens", special_tokens, "--out",
                             fixture->path(std::string("pairs-") + special_tokens)}),
                   0);
    EXPECT_EQ(prepared.err.find("'<|end|>' (1 time)") != std::string::npos,
              special_tokens == std::string("plain"))
        << prepared.err;
  }
}

TEST_F(Generate, CtrlCEndsByTheSignal) {
  ExpectExit(RunCommand({"env", "--default-signal=INT", "timeout", "--preserve-status", "-k", "60",
                         "-s", "INT", "2", kProgram, "generate", "--model", Path("run"), "--prompt",
                         "a", "--max-tokens", "1000000000", "--ignore-eos"}),
             130);
}

// If a tokenizer puts a space in front of each text and of each piece, the space of the first new
// piece is printed, also in sample texts of training.
TEST_F(Generate, WhatFollowsThePromptKeepsItsSpace) {
  proto::sentencepiece::ModelProto pieces = interop::test::SmallSentencePiece(false);
  pieces.mutable_trainer_spec()->set_byte_fallback(false);
  pieces.mutable_normalizer_spec()->set_add_dummy_prefix(true);
  pieces.mutable_pieces()->DeleteSubrange(3, pieces.pieces_size() - 3);
  for (const char* text : {"\xE2\x96\x81"
                           "a",
                           "\xE2\x96\x81"
                           "b"}) {
    auto* piece = pieces.add_pieces();
    piece->set_piece(text);
    piece->set_type(1);
    piece->set_score(-1);
  }
  const std::filesystem::path folder = Path("prefix"), data = fixture->path("prefix-data");
  std::filesystem::create_directory(folder);
  data::MakeSentencePieceTokenizer(pieces.SerializeAsString())->Save(folder);
  const RunResult text =
      ExpectExit(Halflife({"generate", "--model", Path("run"), "--tokenizer", folder, "--prompt",
                           "b", "--max-tokens", "20", "--ignore-eos"}),
                 0);
  EXPECT_EQ(text.out.find("b "), 0u) << text.out;
  EXPECT_GT(text.out.size(), 6u) << text.out;

  for (const char* name : {"words.txt", "more.txt"}) {
    std::ofstream words(fixture->path(name));
    for (int i = 0; i < 2000; ++i) words << (i % 3 == 0 ? "b " : "a ");
    words << (name[0] == 'w' ? 'a' : 'b');
  }
  ExpectExit(
      Halflife({"prepare", "--input", Path("words.txt"), "--validation-input", Path("more.txt"),
                "--tokenizer", folder, "--documents", "file", "--out", data}),
      0);
  ExpectExit(
      fixture->Run({.run = "prefix-run",
                    .set = {"data.path=" + data.string(), "train.steps=1", "data.seq_len=16",
                            "eval.sample_prompt=b", "eval.sample_tokens=20", "eval.every=1"}}),
      0);
  const std::filesystem::path events =
      std::filesystem::directory_iterator(fixture->path("prefix-run") / "events")->path();
  std::ifstream file(events, std::ios::binary);
  const std::string shown((std::istreambuf_iterator<char>(file)), {});
  const size_t sample = shown.find("    b", shown.find("eval/sample"));  // Unchanged, but indented.
  ASSERT_NE(sample, std::string::npos);
  EXPECT_EQ(shown.substr(sample, 6), "    b ") << shown.substr(sample, 40);
}

// With a table of 64 positions, a text ends there with a message. A sample text does not end
// training.
TEST_F(Generate, ATextEndsWithTheModelsPositions) {
  const RunResult trained =
      ExpectExit(fixture->Run({.run = "table",
                               .set = {"train.steps=1", "model.positions=learned",
                                       "model.positions.learned.max_positions=64",
                                       "eval.sample_prompt=the river", "eval.sample_tokens=200",
                                       "eval.every=1"}}),
                 0);
  EXPECT_THAT(trained.err, Not(HasSubstr("no sample text")));
  const auto generate = [&](const std::string& prompt) {
    return Halflife({"generate", "--model", Path("table"), "--prompt", prompt, "--max-tokens",
                     "100", "--ignore-eos", "--stats"});
  };
  ExpectExit(generate("the river"), 0,
             {"new     56 tokens",
              "the text ends after 56 of 100 new tokens, at the model's table of 64 "
              "positions"});
  ExpectExit(Halflife({"generate", "--model", Path("table"), "--chat", "--chat-template", "zephyr",
                       "--prompt", "hi", "--max-tokens", "100", "--ignore-eos", "--stats"}),
             0,
             {"the answer ends after ", " of 100 new tokens, at the model's table of 64 positions",
              "texts   1, with prompts of ", "tokens/s with the time of the prompts"});
  std::ofstream(fixture->path("table.jsonl")) << "\"a\"\n\"the river\"\n";
  ExpectExit(Halflife({"generate", "--model", Path("table"), "--prompts", Path("table.jsonl"),
                       "--max-tokens", "60", "--ignore-eos"}),
             0,
             {"the text of prompt 2 ends after 56 of 60 new tokens, at the model's table of 64 "
              "positions"});
  // With several texts per prompt, warnings name the prompt, and --stats counts the texts.
  const RunResult samples =
      ExpectExit(Halflife({"generate", "--model", Path("table"), "--prompts", Path("table.jsonl"),
                           "--max-tokens", "60", "--ignore-eos", "--samples", "2", "--stats"}),
                 0, {"texts   4, with prompts of 20 tokens in all", "new     232 tokens"});
  EXPECT_THAT(samples.err, HasSubstr("the text of prompt 2 ends after 56 of 60 new tokens"));
  EXPECT_THAT(samples.err, Not(HasSubstr("of prompt 3")));
  const RunResult longer = ExpectExit(generate(std::string(65, 'a')), 2);
  EXPECT_EQ(longer.out, "");
  EXPECT_THAT(longer.err,
              HasSubstr("the prompt has 65 tokens, too many for the model's table of 64 "
                        "positions. Use at most 64."));

  ExpectExit(fixture->Run({.run = "too-long",
                           .set = {"train.steps=1", "model.positions=learned",
                                   "model.positions.learned.max_positions=64",
                                   "eval.sample_prompt=" + std::string(65, 'a'), "eval.every=1"}}),
             0, {"no sample text: the prompt has 65 tokens"});
}

TEST_F(Generate, EvalAgreesWithTheRunAndBeatsItsStart) {
  const RunResult result =
      ExpectExit(Halflife({"eval", "--model", Path("run"), "--data", Path("data"), "--windows",
                           "16", "--bigram", "--json"}),
                 0);
  const auto eval = nlohmann::json::parse(result.out);
  const double trained = fixture->Metrics("run", "val_loss").back()["val_loss"];
  // The same windows in different batches.
  EXPECT_NEAR(eval["loss"].get<double>() / trained, 1, 1e-6);
  EXPECT_GT(eval["bigram_loss"].get<double>(), 0);
}

// With 8 bits of mantissa for weights and activations, a loss of a few nats changes by a few
// thousandths.
TEST_F(Generate, EvalComputesInTheGivenPrecision) {
  const auto loss = [&](const char* precision) {
    const RunResult result =
        ExpectExit(Halflife({"eval", "--model", Path("run"), "--data", Path("data"), "--windows",
                             "8", "--precision", precision, "--json"}),
                   0);
    return nlohmann::json::parse(result.out)["loss"].get<double>();
  };
  const double fp32 = loss("fp32"), bf16 = loss("bf16");
  EXPECT_NE(fp32, bf16);
  EXPECT_NEAR(bf16, fp32, 2e-2);
  ExpectExit(Text({"--precision", "bf16"}), 0);
  EXPECT_EQ(ExpectExit(Text({"--device", "cpu", "--precision", "fp32"}), 0).out,
            ExpectExit(Text({"--device", "cpu"}), 0).out);
}

TEST_F(Generate, AGpuThatIsNotThereIsRefused) {
  const std::string run = Path("run"), data = fixture->path("data");
  std::ofstream(fixture->path("ids.json")) << "[[5,6,7]]";
  const std::vector<std::string> commands[] = {
      {"generate", "--model", run, "--prompt", "a"},
      {"eval", "--model", run, "--data", data},
      {"score", "--model", run, "--tokens", Path("ids.json"), "--out", "-"}};
  for (const std::vector<std::string>& command : commands) {
    ExpectExit(RunCommand(Append(Append({"env", "CUDA_VISIBLE_DEVICES=", kProgram}, command),
                                 {"--device", "cuda"})),
               4, {"--device is 'cuda', but", "or use --device 'cpu'"});
  }
}

TEST_F(Generate, EvalOnTwoRanksIsTheSame) {
  std::vector<double> losses;
  for (const int ranks : {1, 2}) {
    const std::vector<std::string> command = {
        kProgram, "eval",    "--model", Path("run"), "--data", Path("data"), "--windows",
        "8",      "--batch", "4",       "--threads", "1",      "--json"};
    const RunResult result =
        ExpectExit(ranks == 1 ? RunCommand(command) : RunRanks(ranks, command), 0);
    losses.push_back(nlohmann::json::parse(result.out)["loss"]);
  }
  EXPECT_NEAR(losses[0] / losses[1], 1, 1e-6);
}

// The peak of a CPU varies more between starts than its utilisation would.
TEST_F(Generate, MetricsClaimNoShareOfACpusPeak) {
  const auto line = fixture->Metrics("run", "loss").back();
  for (const char* key : {"mfu_6p", "mfu_full", "peak_flops"})
    EXPECT_FALSE(line.contains(key)) << line;
}

TEST_F(Generate, AHybridIsShownWithAllItsMixers) {
  std::ifstream file(fixture->recipe());
  std::string recipe((std::istreambuf_iterator<char>(file)), {});
  const std::string mixer = "mixer { gla";
  ASSERT_NE(recipe.find(mixer), std::string::npos);
  recipe.insert(recipe.find(mixer), "hybrid { layers: [1] mixer { softmax {} } } ");
  std::ofstream(fixture->path("hybrid.textproto")) << recipe;
  const std::string shown = "gla + softmax in 1 of 2 layers", run = fixture->path("hybrid");
  ExpectExit(Halflife({"train", "--config", Path("hybrid.textproto"), "--run", run, "--set",
                       "data.path=" + Path("data"), "--set", "train.steps=1"}),
             0, {shown});
  const auto json = nlohmann::json::parse(Halflife({"inspect", run, "--json"}).out);
  EXPECT_EQ(json["checkpoint"]["mixers"], shown);
  const std::string page = Halflife({"report", run, "--out", "-"}).out;
  EXPECT_THAT(page, HasSubstr(shown));
}

TEST_F(Generate, ACheckpointRecordsItsVersions) {
  const RunResult result = ExpectExit(Halflife({"ckpt", "inspect", Path("run"), "--json"}), 0);
  const auto versions = nlohmann::json::parse(result.out)["versions"];
  for (const char* of : {"halflife", "torch", "mpi", "hdf5", "protobuf", "compiler"})
    EXPECT_NE(versions.value(of, ""), "") << of << " of " << versions;
}

TEST_F(Generate, InspectKnowsWhatItLooksAt) {
  const std::pair<std::string, std::string> cases[] = {{"run", "step 60"},
                                                       {"data", "259"},
                                                       {"recipe.textproto", "gla"},
                                                       {"run/ckpt/step_000000000060", "60"}};
  for (const auto& [what, expected] : cases) {
    const RunResult result = ExpectExit(Halflife({"inspect", Path(what)}), 0);
    EXPECT_THAT(result.out, HasSubstr(expected)) << what << ":\n" << result.out;
  }
  ExpectExit(Halflife({"inspect", Path("text.txt")}), 2);
}

}  // namespace
}  // namespace halflife::test
