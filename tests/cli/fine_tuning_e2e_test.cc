// Fine-tuning with the binary: an encoder learns masked bytes and then classes of sequences; a
// decoder learns answers to prompts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/concat.h"
#include "core/philox.h"
#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;

// Returns a table of sequences of bases, like the task of `dna_alibi`: those of class 1 contain a
// motif at a random position, those of class 0 do not. The motif is its own mirror image, because
// ALiBi is symmetric.
std::string MotifTable(int count, uint64_t seed) {
  const RandomKey key = MakeRandomKey(seed, RandomPurpose::kTest, 2);
  const std::string motif = "CCCCCC";
  std::string table = "sequence\tlabel\n";
  for (int i = 0; i < count; ++i) {
    std::string bases;
    for (uint64_t t = 0; t < 30; ++t)
      bases += "ACGT"[Draw(key, static_cast<uint64_t>(i), t, 0).x[0] % 4];
    const RandomCounter draw = Draw(key, static_cast<uint64_t>(i), 1000, 0);
    for (size_t at = bases.find(motif); at != std::string::npos; at = bases.find(motif))
      bases[at] = 'T';
    const bool with = draw.x[0] % 2 == 1;
    if (with) bases.replace(draw.x[1] % (bases.size() - motif.size()), motif.size(), motif);
    table += Concat(bases, "\t", with ? 1 : 0, "\n");
  }
  return table;
}

class FineTuning : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    fixture = std::make_unique<RunFixture>(20000);
    Write("train.tsv", MotifTable(2000, 1));
    Write("dev.tsv", MotifTable(200, 2));
  }
  static void Write(const std::string& name, const std::string& text) {
    std::ofstream(fixture->path(name)) << text;
  }
  static RunResult Prepare(const std::string& out, std::vector<std::string> more) {
    return Halflife(Append({"prepare", "--tokenizer", "bytes", "--out", Path(out)}, more));
  }
  // Prepares the data once.
  static void PrepareMotifs() {
    if (std::filesystem::exists(Path("motifs"))) return;
    const RunResult result =
        ExpectExit(Prepare("motifs", {"--labels", "classes", "--input", Path("train.tsv"),
                                      "--validation-input", Path("dev.tsv"), "--test-input",
                                      Path("dev2.tsv"), "--field", "sequence", "--row-len", "32"}),
                   0);
    EXPECT_THAT(result.out, HasSubstr("train: 2000 examples in 2000 rows"));
    EXPECT_THAT(result.out, HasSubstr("classes: 0, 1"));
  }
  // Returns the settings of an encoder with ALiBi on rows of 32 tokens.
  static std::vector<std::string> Encoder(std::vector<std::string> more) {
    return Append(
        {"data.seq_len=32", "model.model_dim=64", "model.num_layers=2", "model.mixer=softmax",
         "model.mixer.softmax.num_heads=4", "model.mixer.softmax.causal=false",
         "model.mixer.softmax.rope_theta=0", "model.positions=alibi", "train.global_batch=32",
         "train.micro_batch=32", "optimizer.lr=3e-3", "eval.windows=0"},
        more);
  }
  static nlohmann::json Eval(const std::vector<std::string>& more) {
    const RunResult result = ExpectExit(Halflife(Append({"eval", "--json"}, more)), 0);
    return nlohmann::json::parse(result.out);
  }
};

TEST_F(FineTuning, AnEncoderLearnsClasses) {
  Write("dev2.tsv", MotifTable(50, 3));
  PrepareMotifs();
  ExpectExit(fixture->Run({.run = "hidden",
                           .set = Encoder({"data.path=" + Path("data"),
                                           "model.objective=masked_token", "train.steps=20"})}),
             0);
  ExpectExit(
      fixture->Run({.run = "classes",
                    .set = Encoder({"data.path=" + Path("motifs"), "model.objective=classification",
                                    "train.steps=400", "eval.every=200"}),
                    .flags = {"--init-from", Path("hidden"), "--init-allow-missing", "classifier.*",
                              "--init-allow-unexpected", "lm_head.*"}}),
      0, {"2 kept at their initial value"});
  const auto validations = fixture->Metrics("classes", "val_mcc");
  ASSERT_FALSE(validations.empty());
  EXPECT_GT(validations.back()["val_accuracy"], 0.9) << validations.back();
  EXPECT_GT(validations.back()["val_auroc"], 0.95);

  const nlohmann::json scores = Eval({"--model", Path("classes"), "--data", Path("motifs")});
  EXPECT_NEAR(scores["accuracy"].get<double>(), validations.back()["val_accuracy"].get<double>(),
              1e-12);
  EXPECT_NEAR(scores["classes"]["mcc"].get<double>(), validations.back()["val_mcc"].get<double>(),
              1e-12);
  EXPECT_EQ(scores["classes"]["documents"], 200);
  EXPECT_EQ(Eval({"--model", Path("classes"), "--data", Path("motifs"), "--split",
                  "test"})["classes"]["documents"],
            50);

  // Evaluates by length and by method too, but refuses classes with different numbers.
  const RunResult by_length = ExpectExit(Halflife({"eval", "--model", Path("classes"), "--data",
                                                   Path("motifs"), "--lengths", "32", "--json"}),
                                         0);
  EXPECT_EQ(nlohmann::json::parse(by_length.out)["rows"][0]["classes"]["mcc"],
            scores["classes"]["mcc"]);
  ExpectExit(Prepare("turned", {"--labels", "classes", "--input", Path("train.tsv"), "--classes",
                                "1,0", "--field", "sequence", "--row-len", "32"}),
             0);
  ExpectExit(Halflife({"eval", "--model", Path("classes"), "--data", Path("turned")}), 2,
             {"Prepare it with --classes 0,1."});

  // An encoder of classes neither scores nor generates text.
  ExpectExit(Halflife({"generate", "--model", Path("classes"), "--prompt", "ACGT"}), 2,
             {"classification"});
  ExpectExit(Halflife({"eval", "--model", Path("classes"), "--data", Path("data"), "--retrieval",
                       "mqar", "--lengths", "64"}),
             2, {"the model's objective is classification"});
  ExpectExit(Halflife({"eval", "--model", Path("classes"), "--data", Path("data")}), 2,
             {"the validation split holds text, which has no labels of its own"});
}

TEST_F(FineTuning, RefusesWhatDoesNotFit) {
  Write("dev2.tsv", MotifTable(50, 3));
  PrepareMotifs();
  const auto refused = [&](std::vector<std::string> set, const char* message) {
    set.push_back("data.path=" + Path("motifs"));
    ExpectExit(fixture->Run({.run = "refused", .set = Encoder(set)}), 2, {message});
  };
  refused({"model.objective=next_token", "model.mixer.softmax.causal=true"},
          "holds texts and their classes. Use model { objective { classification {} } }.");
  refused({"model.objective=classification", "model.objective.classification.num_classes=3"},
          "num_classes is 3, but the train split has 2 classes: 0, 1");
  refused({"model.objective=classification", "data.seq_len=64"}, "labelled rows of 32 tokens");
  Write("odd.tsv", "sequence\tlabel\nACGT\tmaybe\n");
  ExpectExit(
      Prepare("odd", {"--labels", "classes", "--input", Path("train.tsv"), "--validation-input",
                      Path("odd.tsv"), "--field", "sequence", "--row-len", "32"}),
      3, {"odd.tsv:2: the label 'maybe' is not one of the classes 0, 1"});
  EXPECT_FALSE(std::filesystem::exists(Path("odd")));
  ExpectExit(Prepare("other",
                     {"--labels", "answers", "--input", Path("pairs.jsonl"), "--label-field", "l"}),
             2, {"--label-field does nothing with --labels answers. Use --labels classes."});
  ExpectExit(Prepare("alone", {"--input", Path("text.txt"), "--row-len", "32"}), 2);
}

// Only answers are learned: prompts are random letters, and the answer is the last letter.
TEST_F(FineTuning, ADecoderLearnsAnswers) {
  std::string pairs;
  for (int i = 0; i < 600; ++i) {
    const char last = static_cast<char>('a' + i % 5);
    pairs += Concat("{\"prompt\": \"", static_cast<char>('a' + i / 7 % 26),
                    static_cast<char>('a' + i / 3 % 26), last, "?\", \"answer\": \"", last, last,
                    "!\"}\n");
  }
  Write("pairs.jsonl", pairs);
  ExpectExit(
      Prepare("pairs", {"--labels", "answers", "--input", Path("pairs.jsonl"), "--row-len", "32"}),
      0);
  ExpectExit(fixture->Run({.run = "answers",
                           .set = {"data.path=" + Path("pairs"), "data.seq_len=32",
                                   "train.steps=120", "train.global_batch=8", "train.micro_batch=8",
                                   "optimizer.lr=1e-2", "eval.windows=0"}}),
             0);
  const RunResult generated =
      ExpectExit(Halflife({"generate", "--model", Path("answers"), "--prompt", "xyc?",
                           "--temperature", "0", "--max-tokens", "8"}),
                 0);
  EXPECT_THAT(generated.out, HasSubstr("xyc?cc!"));
  EXPECT_GT(Eval({"--model", Path("answers"), "--data", Path("pairs")})["accuracy"], 0.95);
  // Measures of running text do not apply to rows.
  for (const std::vector<std::string>& of_text :
       {std::vector<std::string>{"--recall"}, {"--protocol", "sliding:16"}}) {
    ExpectExit(Halflife(Append(
                   {"eval", "--model", Path("answers"), "--data", Path("pairs"), "--lengths", "32"},
                   of_text)),
               2, {"need text, but"});
  }
}

// The answer of a chat is the last letter of the message, twice. Conversations at the terminal and
// from a file give equal answers.
TEST_F(FineTuning, AChatAnswersInTheTerminalAndFromAFile) {
  std::string chats;
  for (int i = 0; i < 600; ++i) {
    const char last = static_cast<char>('a' + i % 5);
    chats += Concat(R"({"messages": [{"role": "user", "content": ")",
                    static_cast<char>('a' + i / 7 % 26), static_cast<char>('a' + i / 3 % 26), last,
                    R"("}, {"role": "assistant", "content": ")", last, last, "\"}]}\n");
  }
  Write("chats.jsonl", chats);
  ExpectExit(Prepare("chats", {"--labels", "messages", "--input", Path("chats.jsonl"), "--template",
                               "zephyr", "--row-len", "40"}),
             0);
  ExpectExit(fixture->Run({.run = "chat",
                           .set = {"data.path=" + Path("chats"), "data.seq_len=40",
                                   "train.steps=800", "train.global_batch=8", "train.micro_batch=8",
                                   "optimizer.lr=1e-2", "eval.windows=0"}}),
             0);
  const auto chat = [&](const std::vector<std::string>& more) {
    return ExpectExit(Halflife(Append({"generate", "--model", Path("chat"), "--chat",
                                       "--temperature", "0", "--max-tokens", "12"},
                                      more)),
                      0)
        .out;
  };
  EXPECT_EQ(chat({"--prompt", "xyc"}), "cc\n") << "without the markup of the template";
  const auto json = nlohmann::json::parse(chat({"--prompt", "xyc", "--json"}));
  EXPECT_EQ(json["text"], "cc");
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["messages"][0]["content"], "xyc");

  const RunResult terminal = ExpectExit(
      RunCommand({"sh", "-c",
                  Concat("printf 'xyc\\n\\nabe\\n' | '", kProgram, "' generate --model '",
                         Path("chat"), "' --chat --temperature 0 --max-tokens 12 --json")}),
      0);
  std::istringstream answers(terminal.out);
  std::vector<nlohmann::json> turns;
  for (std::string line; std::getline(answers, line);) turns.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(turns.size(), 2u) << "an empty line is no message";
  EXPECT_EQ(turns[0]["text"], "cc");
  ASSERT_EQ(turns[1]["messages"].size(), 3u);
  EXPECT_EQ(turns[1]["messages"][1]["content"], "cc");
  Write("asked.jsonl", Concat(turns[1]["messages"].dump(), "\n",
                              nlohmann::json{{"messages", turns[0]["messages"]}}.dump(), "\n"));
  std::istringstream lines(chat({"--prompts", Path("asked.jsonl")}));
  for (const nlohmann::json& want : {turns[1], turns[0]}) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(nlohmann::json::parse(line), want);
  }

  Write("bad.jsonl", "{\"prompt\": \"a\"}\n");
  ExpectExit(
      Halflife({"generate", "--model", Path("chat"), "--chat", "--prompts", Path("bad.jsonl")}), 3,
      {"bad.jsonl, line 1: the messages are a JSON object, not a list"});
  ExpectExit(Halflife({"generate", "--model", Path("chat"), "--prompt", "a", "--system", "b"}), 2,
             {"--chat"});
  ExpectExit(Halflife({"generate", "--model", Path("chat"), "--chat", "--prompt", "a",
                       "--max-tokens", "0"}),
             2, {"--max-tokens 0 leaves no room for an answer. Use 1 or more."});
}

}  // namespace
}  // namespace halflife::test
