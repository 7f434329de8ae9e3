// eval, generate and inspect on a small trained run.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "data/small_bpe.h"
#include "data/tokenizer.h"
#include "interop/small_sentencepiece.h"
#include "support/paths.h"
#include "support/run_fixture.h"

namespace halflife::test {
namespace {

class Generate : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    fixture = new RunFixture(kProgram);
    const RunResult result =
        fixture->Run({.run = "run", .set = {"train.steps=60", "ckpt.every=0"}});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  static void TearDownTestSuite() { delete fixture; }
  static RunResult Text(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"generate", "--model",     fixture->path("run"),
                                          "--prompt", "the river",   "--max-tokens",
                                          "60",       "--ignore-eos"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return fixture->Halflife(arguments);
  }
  static RunFixture* fixture;
};
RunFixture* Generate::fixture = nullptr;

TEST_F(Generate, IsAFunctionOfTheSeed) {
  const RunResult a = Text({"--seed", "1"}), b = Text({"--seed", "1"}), c = Text({"--seed", "2"});
  ASSERT_EQ(a.exit_code, 0) << a.err;
  EXPECT_EQ(a.out.find("the river"), 0u) << a.out;
  EXPECT_GT(a.out.size(), 30u);
  EXPECT_EQ(a.out, b.out);
  EXPECT_NE(a.out, c.out);
}

TEST_F(Generate, StatsAndGreedy) {
  const RunResult result = Text({"--temperature", "0", "--stats"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("tokens/s"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("state"), std::string::npos) << result.err;
}

TEST_F(Generate, BadFlags) {
  const RunResult p = Text({"--top-p", "2"});
  EXPECT_EQ(p.exit_code, 2);
  EXPECT_NE(p.err.find("top-p is 2"), std::string::npos) << p.err;
  const RunResult empty =
      fixture->Halflife({"generate", "--model", fixture->path("run"), "--prompt", ""});
  EXPECT_EQ(empty.exit_code, 2) << empty.err;
  EXPECT_NE(empty.err.find("prompt is empty"), std::string::npos) << empty.err;
  const RunResult none =
      fixture->Halflife({"generate", "--model", fixture->path("nothing"), "--prompt", "a"});
  EXPECT_EQ(none.exit_code, 76) << none.err;
}

TEST_F(Generate, APromptThatTheTokenizerCannotRead) {
  proto::sentencepiece::ModelProto pieces = interop::test::SmallSentencePiece(true);
  pieces.mutable_trainer_spec()->set_byte_fallback(false);
  pieces.mutable_pieces()->DeleteSubrange(3, 256);
  const std::filesystem::path folder = fixture->path("no_fallback");
  std::filesystem::create_directory(folder);
  data::MakeSentencePieceTokenizer(pieces.SerializeAsString())->Save(folder);
  const auto generate = [&](const char* prompt) {
    return fixture->Halflife({"generate", "--model", fixture->path("run"), "--tokenizer", folder,
                              "--prompt", prompt, "--max-tokens", "2"});
  };
  const RunResult latin1 = generate("a\xff");
  EXPECT_EQ(latin1.exit_code, 2) << latin1.err;
  EXPECT_NE(latin1.err.find("not UTF-8 from byte 1 on"), std::string::npos) << latin1.err;
  const RunResult unknown = generate("ab \u00e9\u4e2d c\u00e9");
  EXPECT_EQ(unknown.exit_code, 2) << unknown.err;
  EXPECT_NE(unknown.err.find("no tokens for: '\u00e9', '\u4e2d'. Use text without"),
            std::string::npos)
      << unknown.err;
  EXPECT_EQ(unknown.out, "");
  EXPECT_EQ(generate("ab c").exit_code, 0);

  const RunResult bytes = fixture->Halflife(
      {"generate", "--model", fixture->path("run"), "--prompt", "a\xff", "--max-tokens", "2"});
  EXPECT_EQ(bytes.exit_code, 0) << bytes.err;
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
  const std::filesystem::path model = fixture->path("pieces.model"), text = fixture->path("ab.txt");
  std::ofstream(model, std::ios::binary) << pieces.SerializeAsString();
  std::ofstream(text) << "ab abc";
  std::filesystem::create_directory(fixture->path("spm"));
  std::filesystem::copy(model, fixture->path("spm") / "tokenizer.model");
  const std::string run = fixture->path("run");
  for (const std::string& tokenizer :
       {std::string("bytes"), (fixture->path("data") / "tokenizer").string(), bpe.string(),
        (bpe / "tokenizer.json").string(), model.string(), fixture->path("spm").string()}) {
    for (std::vector<std::string> command :
         {std::vector<std::string>{"generate", "--prompt", "ab c", "--max-tokens", "2"},
          {"eval", "--text", text, "--seq-len", "2"},
          {"score", "--text", text, "--out", "-"}}) {
      command.insert(command.end(), {"--model", run, "--tokenizer", tokenizer});
      const RunResult result = fixture->Halflife(command);
      EXPECT_EQ(result.exit_code, 0) << command[0] << " with " << tokenizer << ": " << result.err;
    }
  }
}

TEST_F(Generate, NamesOfSpecialTokens) {
  const std::filesystem::path bpe = WriteByteBpe(fixture->path("named"));
  const std::filesystem::path text = fixture->path("chat.txt");
  std::ofstream(text) << "a<|end|>b";
  const auto score = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {
        "score", "--model", fixture->path("run"), "--tokenizer", bpe, "--text", text, "--out", "-"};
    command.insert(command.end(), more.begin(), more.end());
    const RunResult result = fixture->Halflife(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair(nlohmann::json::parse(result.out)["ids"].get<std::vector<int>>(), result.err);
  };
  EXPECT_EQ(score({}).first, (std::vector<int>{'a', 256, 'b'}));
  const auto [plain, warning] = score({"--special-tokens", "plain"});
  EXPECT_EQ(plain.size(), 9u);
  EXPECT_EQ(std::ranges::count(plain, 256), 0);
  EXPECT_NE(warning.find("[warning] score: --text contains names of special tokens, which are read "
                         "as characters: '<|end|>' (1 time). Use --special-tokens parse to read "
                         "them as these tokens."),
            std::string::npos)
      << warning;

  const auto prompt_tokens = [&](const char* special_tokens) {
    const RunResult result = fixture->Halflife(
        {"generate", "--model", fixture->path("run"), "--tokenizer", bpe, "--prompt", "a<|end|>b",
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
  const RunResult eval = fixture->Halflife({"eval", "--model", fixture->path("run"), "--tokenizer",
                                            bpe, "--text", text, "--seq-len", "4"});
  EXPECT_NE(eval.err.find("'<|end|>' (1 time). Remove them from the text if they are markup."),
            std::string::npos)
      << eval.err;
  std::ofstream(fixture->path("pairs.tsv")) << "prompt\tanswer\na<|end|>\tb\n";
  for (const char* special_tokens : {"parse", "plain"}) {
    const RunResult prepared = fixture->Halflife(
        {"prepare", "--labels", "answers", "--input", fixture->path("pairs.tsv"),
         "--validation-fraction", "0", "--row-len", "16", "--tokenizer", bpe, "--special-tokens",
         special_tokens, "--out", fixture->path(std::string("pairs-") + special_tokens)});
    ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
    EXPECT_EQ(prepared.err.find("'<|end|>' (1 time)") != std::string::npos,
              special_tokens == std::string("plain"))
        << prepared.err;
  }
}

TEST_F(Generate, CtrlCEndsByTheSignal) {
  const RunResult result =
      RunCommand({"env", "--default-signal=INT", "timeout", "--preserve-status", "-k", "60", "-s",
                  "INT", "2", kProgram, "generate", "--model", fixture->path("run"), "--prompt",
                  "a", "--max-tokens", "1000000000", "--ignore-eos"});
  EXPECT_EQ(result.exit_code, 130) << result.err;
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
  const std::filesystem::path folder = fixture->path("prefix"), data = fixture->path("prefix-data");
  std::filesystem::create_directory(folder);
  data::MakeSentencePieceTokenizer(pieces.SerializeAsString())->Save(folder);
  const RunResult text =
      fixture->Halflife({"generate", "--model", fixture->path("run"), "--tokenizer", folder,
                         "--prompt", "b", "--max-tokens", "20", "--ignore-eos"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.out.find("b "), 0u) << text.out;
  EXPECT_GT(text.out.size(), 6u) << text.out;

  for (const char* name : {"words.txt", "more.txt"}) {
    std::ofstream words(fixture->path(name));
    for (int i = 0; i < 2000; ++i) words << (i % 3 == 0 ? "b " : "a ");
    words << (name[0] == 'w' ? 'a' : 'b');
  }
  const RunResult prepared = fixture->Halflife(
      {"prepare", "--input", fixture->path("words.txt"), "--validation-input",
       fixture->path("more.txt"), "--tokenizer", folder, "--documents", "file", "--out", data});
  ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
  const RunResult trained =
      fixture->Run({.run = "prefix-run",
                    .set = {"data.path=" + data.string(), "train.steps=1", "data.seq_len=16",
                            "eval.sample_prompt=b", "eval.sample_tokens=20", "eval.every=1"}});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
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
  const RunResult trained = fixture->Run(
      {.run = "table",
       .set = {"train.steps=1", "model.positions=learned",
               "model.positions.learned.max_positions=64", "eval.sample_prompt=the river",
               "eval.sample_tokens=200", "eval.every=1"}});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(trained.err.find("no sample text"), std::string::npos) << trained.err;
  const auto generate = [&](const std::string& prompt) {
    return fixture->Halflife({"generate", "--model", fixture->path("table"), "--prompt", prompt,
                              "--max-tokens", "100", "--ignore-eos", "--stats"});
  };
  const RunResult text = generate("the river");
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.err.find("new     56 tokens"), std::string::npos) << text.err;
  EXPECT_NE(text.err.find("the text ends after 56 of 100 new tokens, at the model's table of 64 "
                          "positions"),
            std::string::npos)
      << text.err;
  const RunResult longer = generate(std::string(65, 'a'));
  EXPECT_EQ(longer.exit_code, 2) << longer.err;
  EXPECT_EQ(longer.out, "");
  EXPECT_NE(longer.err.find("the prompt has 65 tokens, too many for the model's table of 64 "
                            "positions. Use at most 64."),
            std::string::npos)
      << longer.err;

  const RunResult too_long =
      fixture->Run({.run = "too-long",
                    .set = {"train.steps=1", "model.positions=learned",
                            "model.positions.learned.max_positions=64",
                            "eval.sample_prompt=" + std::string(65, 'a'), "eval.every=1"}});
  EXPECT_EQ(too_long.exit_code, 0) << too_long.err;
  EXPECT_NE(too_long.err.find("no sample text: the prompt has 65 tokens"), std::string::npos)
      << too_long.err;
}

TEST_F(Generate, EvalAgreesWithTheRunAndBeatsItsStart) {
  const RunResult result =
      fixture->Halflife({"eval", "--model", fixture->path("run"), "--data", fixture->path("data"),
                         "--windows", "16", "--bigram", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
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
        fixture->Halflife({"eval", "--model", fixture->path("run"), "--data", fixture->path("data"),
                           "--windows", "8", "--precision", precision, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out)["loss"].get<double>();
  };
  const double fp32 = loss("fp32"), bf16 = loss("bf16");
  EXPECT_NE(fp32, bf16);
  EXPECT_NEAR(bf16, fp32, 2e-2);
  EXPECT_EQ(Text({"--precision", "bf16"}).exit_code, 0);
}

TEST_F(Generate, AGpuThatIsNotThereIsRefused) {
  const std::string run = fixture->path("run"), data = fixture->path("data");
  std::ofstream(fixture->path("ids.json")) << "[[5,6,7]]";
  const std::vector<std::string> commands[] = {
      {"generate", "--model", run, "--prompt", "a"},
      {"eval", "--model", run, "--data", data},
      {"score", "--model", run, "--tokens", fixture->path("ids.json"), "--out", "-"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.begin(), {"env", "CUDA_VISIBLE_DEVICES=", kProgram});
    command.insert(command.end(), {"--device", "cuda"});
    const RunResult result = RunCommand(command);
    EXPECT_EQ(result.exit_code, 4) << result.err;
    EXPECT_NE(result.err.find("--device is 'cuda', but"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("or use --device 'cpu'"), std::string::npos) << result.err;
  }
}

TEST_F(Generate, EvalOnTwoRanksIsTheSame) {
  std::vector<double> losses;
  for (const int ranks : {1, 2}) {
    const std::vector<std::string> command = {kProgram,    "eval",
                                              "--model",   fixture->path("run"),
                                              "--data",    fixture->path("data"),
                                              "--windows", "8",
                                              "--batch",   "4",
                                              "--threads", "1",
                                              "--json"};
    const RunResult result = ranks == 1 ? RunCommand(command) : RunRanks(ranks, command);
    ASSERT_EQ(result.exit_code, 0) << result.err;
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
  const RunResult trained = fixture->Halflife(
      {"train", "--config", fixture->path("hybrid.textproto"), "--run", run, "--set",
       "data.path=" + fixture->path("data").string(), "--set", "train.steps=1"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.err.find(shown), std::string::npos) << trained.err;
  const auto json = nlohmann::json::parse(fixture->Halflife({"inspect", run, "--json"}).out);
  EXPECT_EQ(json["checkpoint"]["mixers"], shown);
  const std::string page = fixture->Halflife({"report", run, "--out", "-"}).out;
  EXPECT_NE(page.find(shown), std::string::npos);
}

TEST_F(Generate, ACheckpointRecordsItsVersions) {
  const RunResult result = fixture->Halflife({"ckpt", "inspect", fixture->path("run"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
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
    const RunResult result = fixture->Halflife({"inspect", fixture->path(what)});
    EXPECT_EQ(result.exit_code, 0) << what << result.err;
    EXPECT_NE(result.out.find(expected), std::string::npos) << what << ":\n" << result.out;
  }
  const RunResult unknown = fixture->Halflife({"inspect", fixture->path("text.txt")});
  EXPECT_EQ(unknown.exit_code, 2) << unknown.err;
}

}  // namespace
}  // namespace halflife::test
