// `halflife eval`: its output, for every kind of text, and for ranks that disagree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numbers>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;

class Eval : public ProgramTest {
 protected:
  // "run" was trained on bytes, "pieces-run" on pieces of sentencepiece.
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    ExpectExit(Halflife({"prepare", "--input", Path("text.txt"), "--documents", "blank_lines",
                         "--train-tokenizer", "--vocab", "320", "--out", Path("pieces"),
                         "--validation-fraction", "0.2"}),
               0);
    ExpectExit(fixture->Run({.run = "run", .set = {"train.steps=20"}}), 0);
    ExpectExit(fixture->Run(
                   {.run = "pieces-run", .set = {"train.steps=10", "data.path=" + Path("pieces")}}),
               0);
  }

  // Returns the result of `eval --json`.
  static nlohmann::json Evaluate(const std::string& model, const std::vector<std::string>& more) {
    return HalflifeJson(Append({"eval", "--model", Path(model), "--json"}, more));
  }
  static nlohmann::json Inspect(const std::string& path) {
    return HalflifeJson({"inspect", "--json", path});
  }
};

TEST_F(Eval, BitsPerByteOfBytesAreTheLossInBits) {
  const auto all = Evaluate("run", {"--data", Path("data"), "--bigram"});
  const double ln2 = std::numbers::ln2;
  EXPECT_NEAR(all["bits_per_byte"], all["loss"].get<double>() / ln2, 1e-9);
  EXPECT_NEAR(all["bigram_bits_per_byte"], all["bigram_loss"].get<double>() / ln2, 1e-9);
  const auto train = Evaluate("run", {"--data", Path("data"), "--bigram", "--split", "train"});
  EXPECT_NE(train["bigram_loss"], all["bigram_loss"]) << "of the split that the model is scored on";
  EXPECT_NEAR(train["bigram_bits_per_byte"], train["bigram_loss"].get<double>() / ln2, 1e-9);
  const auto first = Evaluate("run", {"--data", Path("data"), "--windows", "3"});
  EXPECT_NEAR(first["bits_per_byte"], first["loss"].get<double>() / ln2, 1e-9);
  const RunResult printed = Halflife(
      {"eval", "--model", Path("run"), "--data", Path("data"), "--windows", "3", "--bigram"});
  EXPECT_THAT(printed.out, HasSubstr(" bits per byte\nbigram "));
  EXPECT_THAT(printed.out, HasSubstr(" bits per byte (add-one smoothed)"));
}

// The log-probabilities are those of `score`.
TEST_F(Eval, TheChoiceWithTheLargestScoreIsTheAnswer) {
  const std::string context = "the river carried", right = "a small boat", wrong = "zzz";
  std::ofstream(Path("tasks.jsonl"))
      << nlohmann::json{{"context", context}, {"choices", {wrong, right}}, {"answer", 1}}.dump()
      << "\n";
  const nlohmann::json scores =
      HalflifeJson({"eval", "--model", Path("run"), "--tasks", Path("tasks.jsonl"), "--json"});
  EXPECT_EQ(scores["questions"], 1);
  const auto log_prob = [&](const std::string& choice) {
    std::ofstream(Path("pair.txt")) << context + " " + choice;
    ExpectExit(Halflife({"score", "--model", Path("run"), "--text", Path("pair.txt"), "--out",
                         Path("pair.jsonl")}),
               0);
    std::ifstream file(Path("pair.jsonl"));
    double sum = 0;
    const auto all = nlohmann::json::parse(file)["logprobs"];
    for (size_t t = context.size(); t < all.size() + 1; ++t) sum += all[t - 1].get<double>();
    return sum;
  };
  const double of_right = log_prob(right), of_wrong = log_prob(wrong);
  EXPECT_EQ(scores["acc"], of_right > of_wrong ? 1 : 0);
  EXPECT_EQ(scores["acc_norm"],
            of_right / static_cast<double>(right.size()) > of_wrong / 3 ? 1 : 0);
}

// A folder is the list of its text files, sorted.
TEST_F(Eval, AFolderOfTexts) {
  std::filesystem::create_directory(Path("texts"));
  const std::string first = Path("texts/a.txt"), second = Path("texts/b.txt");
  std::ofstream(first) << "the river carried a small boat past the old stone walls "
                       << MakeText(3000, 8);
  std::ofstream(second) << MakeText(2000, 9);
  std::ofstream(Path("texts/notes.md")) << "not text";
  EXPECT_EQ(Evaluate("run", {"--text", Path("texts")})["perplexity"],
            Evaluate("run", {"--text", first, second})["perplexity"]);
}

// The checkpoint records how it was trained, and evaluations read the text in the same way.
TEST_F(Eval, ARunThatContinuesAcrossDocumentsIsScoredSo) {
  ExpectExit(
      fixture->Run({.run = "continues",
                    .set = {"train.steps=10", "eval.windows=0", "data.reset_at_documents=false"}}),
      0);
  const auto result = Evaluate("continues", {"--data", Path("data"), "--bigram"});
  EXPECT_EQ(result["loss"], fixture->Metrics("continues", "val_loss").back()["val_loss"]);
  const auto split = Inspect(Path("data"))["validation"];
  const int64_t windows = (split["tokens"].get<int64_t>() - 1) / 64;
  EXPECT_EQ(result["tokens"], windows * 64) << "each eos has a target";
  const auto resets = Evaluate("run", {"--data", Path("data"), "--bigram"});
  EXPECT_LT(resets["tokens"], windows * 64);
  EXPECT_NE(resets["bigram_loss"], result["bigram_loss"]) << "of the same targets as the model";
  const auto table = Evaluate("continues", {"--data", Path("data"), "--lengths", "64"});
  EXPECT_EQ(table["rows"][0]["tokens"], result["tokens"]);
  EXPECT_NEAR(table["rows"][0]["loss"], result["loss"], 1e-6);
  const RunResult longer = Halflife(
      {"eval", "--model", Path("continues"), "--data", Path("data"), "--lengths", "16,2048"});
  EXPECT_THAT(longer.err, testing::Not(HasSubstr("tokens on average"))) << "context goes on";
}

// A validation split with an easy and a hard source, in either order. A few windows cover both, for
// eval, the bigram model and training. The first eight windows have only one source.
TEST_F(Eval, FewWindowsSeeBothSources) {
  std::string easy, hard;
  while (easy.size() < 8000) easy += "the river ";
  for (uint32_t state = 1; hard.size() < 8000; state = state * 1664525 + 1013904223)
    hard += static_cast<char>('!' + (state >> 16) % 90);
  std::ofstream(Path("easy.txt")) << easy;
  std::ofstream(Path("hard.txt")) << hard;
  const auto loss = [](const std::string& text) {
    return Evaluate("run", {"--text", text})["loss"].get<double>();
  };
  const double low = loss(Path("easy.txt")), high = loss(Path("hard.txt"));
  ASSERT_GT(high, low + 1);
  for (const auto& [first, second] :
       {std::pair{"easy.txt", "hard.txt"}, std::pair{"hard.txt", "easy.txt"}}) {
    const auto result = Evaluate("run", {"--text", Path(first), Path(second), "--windows", "12"});
    EXPECT_EQ(result["windows_scored"], 12);
    EXPECT_EQ(result["windows_available"], 16000 / 64);
    const double of_hard = (result["loss"].get<double>() - low) / (high - low);
    EXPECT_GT(of_hard, 0.2) << first;
    EXPECT_LT(of_hard, 0.8) << first;
    ASSERT_EQ(result["sources"].size(), 2u);
    EXPECT_EQ(result["sources"][0]["name"], first);
    int64_t num_targets = 0;
    for (const auto& source : result["sources"]) {
      EXPECT_NEAR(source["loss"], source["name"] == "easy.txt" ? low : high, 0.3);
      num_targets += source["tokens"].get<int64_t>();
    }
    EXPECT_EQ(num_targets, result["tokens"]);
  }
  const RunResult printed =
      Halflife({"eval", "--model", Path("run"), "--text", Path("easy.txt"), "--windows", "12"});
  EXPECT_THAT(printed.out, HasSubstr("768 tokens in windows of 64\nscored 12 of 125 windows, 9.6 % "
                                     "of the split\nloss "));
}

// Training validates on the windows that eval scores, and reports each source of the dataset, which
// inspect lists.
TEST_F(Eval, TrainingReportsWindowsAndSources) {
  std::ofstream(Path("first.txt")) << MakeText(6000, 31).substr(0, 6000);
  std::ofstream(Path("second.txt")) << std::string(6000, 'x');
  ExpectExit(Halflife({"prepare", "--input", Path("text.txt"), "--validation-input",
                       Path("first.txt"), Path("second.txt"), "--documents", "file", "--tokenizer",
                       "bytes", "--out", Path("two-sources")}),
             0);
  ExpectExit(fixture->Run({.run = "sources-run",
                           .set = {"train.steps=2", "data.path=" + Path("two-sources")}}),
             0);
  const auto line = fixture->Metrics("sources-run", "val_loss").back();
  EXPECT_EQ(line["val_windows_scored"], 16);
  EXPECT_EQ(line["val_windows_available"], 12000 / 64);
  const std::vector<std::string> eval = {"--data", Path("two-sources"), "--windows", "16"};
  const auto result = Evaluate("sources-run", eval);
  EXPECT_EQ(result["windows_available"], line["val_windows_available"]);
  EXPECT_NEAR(result["loss"], line["val_loss"], 1e-6);
  ASSERT_EQ(result["sources"].size(), 2u);
  for (const auto& source : result["sources"])
    EXPECT_NEAR(source["loss"], line["val_loss/" + source["name"].get<std::string>()], 1e-6);
  const auto inspected = Inspect(Path("two-sources"));
  EXPECT_EQ(inspected["validation"]["sources"],
            nlohmann::json::parse(R"([{"name": "first.txt", "tokens": 6001, "documents": 1},
                                      {"name": "second.txt", "tokens": 6001, "documents": 1}])"));
  EXPECT_FALSE(inspected["train"].contains("sources")) << "it is one file";
  EXPECT_THAT(Halflife({"inspect", Path("two-sources")}).out, HasSubstr("first.txt   6001    1\n"));
  EXPECT_THAT(Halflife(Append({"eval", "--model", Path("sources-run")}, eval)).out,
              HasSubstr("\nby source, nats per token\n  first.txt: "));
}

// Rows that are longer than documents do not give more context, and a table warns about it.
TEST_F(Eval, TablesOfShortDocumentsAreWarnedOf) {
  std::ofstream records(Path("short.jsonl"));
  for (int i = 0; i < 200; ++i)
    records << R"({"text": "the small boat past the old walls"})"
               "\n";
  records.close();
  ExpectExit(Halflife({"prepare", "--input", Path("text.txt"), "--validation-input",
                       Path("short.jsonl"), "--tokenizer", "bytes", "--out", Path("short")}),
             0);
  const auto lengths = [](const std::string& data) {
    return Halflife({"eval", "--model", Path("run"), "--data", Path(data), "--lengths", "16,256",
                     "--windows", "2", "--csv", Path("context.csv"), "--out",
                     Path(data + "-context.json")});
  };
  const RunResult result = ExpectExit(lengths("short"), 0,
                                      {"the documents of the validation split have 34 tokens on "
                                       "average, less than half of the longest length, 256. ",
                                       "`halflife prepare --documents file`"});
  EXPECT_THAT(result.out, HasSubstr("scored 2 of 26 windows, 7.7 % of the split, each of 256 "
                                    "tokens\nperplexity by "));
  EXPECT_THAT(result.out, HasSubstr("\ncontext >= half: share of targets with at least half of the "
                                    "length before them in their document\n            16        "
                                    "256       \nas_trained  0."));
  EXPECT_THAT(result.err, HasSubstr("or a model trained with data.reset_at_documents=false."));
  const auto json = nlohmann::json::parse(std::ifstream(Path("short-context.json")));
  EXPECT_EQ(json["windows_scored"], 2);
  EXPECT_EQ(json["windows_available"], 26);
  const auto& shorter = json["rows"][0]["half_context"];
  EXPECT_EQ(shorter["share"],
            shorter["tokens"].get<double>() / json["rows"][0]["tokens"].get<double>());
  EXPECT_GT(shorter["share"], 0.2);
  EXPECT_EQ(json["rows"][1]["half_context"]["share"], 0);
  EXPECT_TRUE(json["rows"][1]["half_context"]["loss"].is_null()) << "the mean of no targets";
  std::ifstream csv(Path("context.csv"));
  const std::string text(std::istreambuf_iterator<char>(csv), {});
  EXPECT_THAT(text, HasSubstr(",windows_scored,windows_available,half_context_share,"));
}

// Bits per byte use the counts of the whole split, also for some of its windows.
TEST_F(Eval, BitsPerByteOfPiecesAreOfTheOriginalText) {
  const auto split = Inspect(Path("pieces"))["validation"];
  const double targets_per_byte =
      (split["tokens"].get<double>() - split["documents"].get<double>()) /
      split["text_bytes"].get<double>();
  EXPECT_LT(targets_per_byte, 0.6);
  for (const std::string windows : {"0", "2"}) {
    const auto result = Evaluate("pieces-run", {"--data", Path("pieces"), "--windows", windows});
    EXPECT_NEAR(result["bits_per_byte"],
                result["loss"].get<double>() / std::numbers::ln2 * targets_per_byte, 1e-9);
  }
  const auto line = fixture->Metrics("pieces-run", "val_loss").back();
  EXPECT_NEAR(line["val_bits_per_byte"],
              line["val_loss"].get<double>() / std::numbers::ln2 * targets_per_byte, 1e-9);
}

TEST_F(Eval, ScorePrintsBitsPerByteOnlyForTexts) {
  const std::vector<std::string> score = {"score", "--model", Path("run"), "--out",
                                          Path("scores.jsonl")};
  std::ofstream(Path("short.txt")) << MakeText(500, 3);
  const RunResult text = ExpectExit(Halflife(Append(score, {"--text", Path("short.txt")})), 0);
  const auto scores = nlohmann::json::parse(std::ifstream(Path("scores.jsonl")));
  double nats = 0;
  for (const double score_of_token : scores["logprobs"]) nats -= score_of_token;
  nats /= static_cast<double>(scores["logprobs"].size());
  char expected[64];
  std::snprintf(expected, sizeof expected, "%.4f nats per token, %.4f bits per byte", nats,
                nats / std::numbers::ln2);
  EXPECT_THAT(text.out, HasSubstr(expected));
  std::ofstream(Path("ids.json")) << "[[5,6,7]]";
  const RunResult tokens = ExpectExit(Halflife(Append(score, {"--tokens", Path("ids.json")})), 0);
  EXPECT_THAT(tokens.out, testing::Not(HasSubstr("per byte")));
}

// The text is shorter than the default window. Its last token is only a target.
TEST_F(Eval, ExplainsWhatLayersLookedAt) {
  ExpectExit(
      fixture->Run({.run = "leap-run",
                    .set = {"train.steps=5", "model.mixer=leap", "model.mixer.leap.num_heads=2"}}),
      0);
  const std::string text = Path("looked.txt"), file = Path("looked_at.json");
  std::ofstream(text) << "the river and the stone";
  const std::vector<std::string> explain = {
      "eval", "--model", Path("leap-run"), "--text", text, "--seq-len", "22", "--explain", file};
  const RunResult result = ExpectExit(Halflife(explain), 0);
  EXPECT_THAT(result.out, testing::AllOf(HasSubstr("window 0, 22 tokens\nlayer 0, leap"),
                                         HasSubstr("share in the last row"), HasSubstr(" at ")));
  const auto told = nlohmann::json::parse(std::ifstream(file));
  const auto& window = told["windows"][0];
  ASSERT_EQ(window["tokens"].size(), 22u);
  EXPECT_EQ(window["tokens"][4]["text"], "r");
  for (const auto& layer : window["layers"]) {
    const auto& pool = layer["pools"][0];
    double sum = 0;
    for (const double share : pool["importance"]) sum += share;
    EXPECT_NEAR(sum, 1, 1e-4);
    const size_t seen = pool["window"] == 0 ? 22 : pool["window"].get<size_t>();
    EXPECT_EQ(pool["top_importance"].size(), std::min<size_t>(seen, 5));
    // The explanation of the last row needs only O(T) numbers per head.
    double rebuilt = 0;
    for (size_t head = 0; head < 2; ++head)
      rebuilt += std::exp(pool["log_weight"][head][20].get<double>() -
                          pool["row_max"][head][21].get<double>()) /
                 pool["row_sum"][head][21].get<double>() / 2;
    EXPECT_NEAR(pool["importance"][20], rebuilt, 1e-6);
  }

  // A single byte of a character is not valid text.
  std::ofstream(Path("umlauts.txt")) << "\xC3\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6\xC3\xBC";
  std::vector<std::string> umlauts = explain;
  umlauts[4] = Path("umlauts.txt");
  umlauts[6] = "10";
  const RunResult pieces = ExpectExit(Halflife(umlauts), 0);
  EXPECT_THAT(pieces.out, HasSubstr("\"\xEF\xBF\xBD\" 0."));
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(file))["windows"][0]["tokens"][0]["text"],
            "\xEF\xBF\xBD");

  const auto refused = [&](std::vector<std::string> arguments, const std::string& words) {
    const RunResult said = Halflife(arguments);
    EXPECT_NE(said.exit_code, 0);
    EXPECT_THAT(said.err, HasSubstr(words));
  };
  const auto with = [&](size_t place, const std::string& value) {
    std::vector<std::string> changed = explain;
    changed[place] = value;
    return changed;
  };
  refused(with(2, Path("run")),
          "can explain which tokens it used. Use a model with layers of leap");
  refused(with(6, "24"), "has 24 tokens, fewer than a window of 24 and one to predict");
  refused({"eval", "--model", Path("run"), "--text", text, "--top", "3"},
          "--top does nothing without --explain. Use --explain FILE with it.");
  refused(Append(explain, {"--batch", "8"}), "--batch and --explain exclude each other");
}

// A published test set has the same scores as a text file and as a dataset's validation split.
TEST_F(Eval, ATextIsWorthWhatItsDatasetIsWorth) {
  const std::string one = Path("one.txt"), two = Path("two.txt");
  std::ofstream(one) << MakeText(3000, 21);
  std::ofstream(two) << MakeText(5000, 22);
  for (const std::string run : {"run", "pieces-run"}) {
    SCOPED_TRACE(run);
    const std::string data = Path(run + ".test");
    ExpectExit(
        Halflife({"prepare", "--input", Path("text.txt"), "--validation-input", one, two,
                  "--documents", "file", "--tokenizer", Path(run) + "/tokenizer", "--out", data}),
        0);
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{}, {"--seq-len", "100", "--windows", "7"}}) {
      const auto expected = Evaluate(run, Append({"--data", data}, more));
      EXPECT_EQ(Evaluate(run, Append({"--text", one, two}, more)), expected);
      EXPECT_GT(expected["tokens"], 500);
    }
  }
  std::vector<std::string> command = {kProgram, "eval", "--model", Path("run"),
                                      "--text", one,    "--json"};
  std::vector<nlohmann::json> results;
  for (const int ranks : {1, 2}) {
    const RunResult result =
        ExpectExit(ranks == 1 ? RunCommand(command) : RunRanks(ranks, command), 0);
    results.push_back(nlohmann::json::parse(result.out));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(Eval, WhatToEvaluateOnIsOneOfTwo) {
  const std::string text = Path("tiny.txt");
  std::ofstream(text) << "the river";
  const auto expect = [](std::vector<std::string> more, int code, const std::string& words) {
    ExpectExit(Halflife(Append({"eval", "--model", Path("run")}, more)), code, {words});
  };
  expect({}, 2,
         "there is no data to evaluate on. Use --data DATASET, --text FILE... or --tasks FILE.");
  expect({"--data", Path("data"), "--text", text}, 2, "--data and --text exclude each other");
  expect({"--text", text, "--bigram"}, 2,
         "--bigram does nothing without --data. Use --data DATASET instead of --text.");
  expect(
      {"--text", text}, 3,
      "the text has 10 tokens, fewer than one window of 64 + 1. Use a shorter data.seq_len (`eval "
      "--seq-len`), or more text (`prepare` with a larger --validation-tail or ");
  expect({"--text", Path("none.txt")}, 3, "none.txt is not a regular file");
  std::filesystem::copy(Path("run") + "/ckpt/step_000000000020", Path("step"));
  const std::vector<std::string> step = {"eval", "--model",   Path("step"), "--text",
                                         text,   "--seq-len", "5"};
  EXPECT_THAT(Halflife(step).err,
              HasSubstr("has no tokenizer. Name one with --tokenizer: `bytes`"));
  ExpectExit(Halflife(Append(step, {"--tokenizer", Path("run") + "/tokenizer"})), 0);
}

// Tables by length resume from their file, are the same on two ranks, and have a CSV file and a
// plot.
TEST_F(Eval, TablesByLengthGoOnWhereTheyStopped) {
  ExpectExit(fixture->Run({.run = "attention", .set = {"train.steps=10", "model.mixer=softmax"}}),
             0);
  const std::vector<std::string> eval = {
      "eval", "--model", Path("attention"), "--data", Path("data"), "--windows", "2"};
  const auto with = [&](const std::vector<std::string>& more) { return Append(eval, more); };
  const std::string out = Path("lengths.json");
  const RunResult first =
      ExpectExit(Halflife(with({"--lengths", "64,256", "--out", out, "--bin", "64"})), 0);
  EXPECT_THAT(first.out, HasSubstr("trained on 64\n            64        256       \nas_trained"));
  auto json = nlohmann::json::parse(std::ifstream(out));
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][0]["tokens"], json["rows"][1]["tokens"]);
  EXPECT_EQ(json["rows"][1]["positions"].size(), 4u);

  // An existing row is not scored again: the mark on it stays.
  json["rows"][0]["seconds"] = -1;
  std::ofstream(out) << json.dump();
  const std::vector<std::string> more = {"--lengths", "64,256",
                                         "--out",     out,
                                         "--bin",     "64",
                                         "--method",  "as_trained,blocks+info_scale",
                                         "--csv",     Path("lengths.csv"),
                                         "--figure",  Path("lengths.svg")};
  ExpectExit(Halflife(with(more)), 0);
  json = nlohmann::json::parse(std::ifstream(out));
  ASSERT_EQ(json["rows"].size(), 4u);
  EXPECT_EQ(json["rows"][0]["seconds"], -1);
  EXPECT_NE(json["rows"][3]["loss"], json["rows"][1]["loss"]);
  std::ifstream csv(Path("lengths.csv"));
  const std::string text(std::istreambuf_iterator<char>(csv), {});
  EXPECT_EQ(std::ranges::count(text, '\n'), 5);
  EXPECT_THAT(text, HasSubstr(",64,blocks+info_scale,256,"));
  EXPECT_TRUE(std::filesystem::exists(Path("lengths.svg")));

  const std::vector<std::string> ranks =
      Append({kProgram}, with({"--lengths", "64,256", "--method", "blocks", "--recall", "--json"}));
  const RunResult one = RunCommand(ranks), two = RunRanks(2, ranks);
  ASSERT_EQ(two.exit_code, 0) << two.err;
  for (int i = 0; i < 2; ++i)
    for (const char* path : {"/loss", "/recall/token_seen/loss", "/recall/bigram_new/loss"}) {
      const nlohmann::json::json_pointer at(path);
      EXPECT_NEAR(nlohmann::json::parse(two.out)["rows"][i].at(at),
                  nlohmann::json::parse(one.out)["rows"][i].at(at), 1e-6);
    }

  EXPECT_THAT(Halflife(with({"--lengths", "64", "--recall"})).out,
              HasSubstr("\nperplexity of new pairs\n"));
  std::vector<std::string> both = with(
      {"--lengths", "64,256", "--protocol", "segments,sliding:32", "--out", out, "--bin", "64"});
  EXPECT_THAT(Halflife(both).out, HasSubstr("\nas_trained, sliding:32  "));
  json = nlohmann::json::parse(std::ifstream(out));
  ASSERT_EQ(json["rows"].size(), 6u);  // In addition to the rows of two methods.
  EXPECT_EQ(json["rows"][4]["protocol"], "sliding:32");
  EXPECT_EQ(json["rows"][4]["tokens"], json["rows"][0]["tokens"]);
  ExpectExit(Halflife(both), 0);  // All rows exist.
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(out)), json);
  EXPECT_THAT(Halflife(with({"--lengths", "64", "--protocol", "carried:16"})).err,
              HasSubstr("the state of the mixer of layer 0, softmax, grows"));
  EXPECT_THAT(Halflife(with({"--protocol", "sliding:8"})).err,
              HasSubstr("--protocol does nothing without --lengths"));
  EXPECT_THAT(Halflife(with({"--recall"})).err,
              HasSubstr("--recall does nothing without --lengths"));

  ExpectExit(Halflife(with({"--lengths", "64,128", "--out", out, "--bin", "64"})), 2,
             {"holds rows of another longest: 256, here 128"});
  EXPECT_THAT(Halflife(with({"--bin", "5"})).err,
              HasSubstr("--bin does nothing without --lengths"));
  EXPECT_THAT(Halflife(with({"--lengths", "64", "--seq-len", "9"})).err,
              HasSubstr("--seq-len and --lengths exclude each other"));
}

// Standard output contains only the table, so a pipe receives one valid file.
TEST_F(Eval, StandardOutputContainsOnlyTheTable) {
  const std::vector<std::string> eval = {"eval",       "--model",   Path("run"), "--data",
                                         Path("data"), "--lengths", "64,128,64"};
  const std::vector<std::string> perplexity = {"--windows", "2", "--method",
                                               "as_trained,as_trained"},
                                 retrieval = {"--retrieval", "mqar", "--pairs",  "2",
                                              "--samples",   "1",    "--depths", "0,0"};
  for (const auto& [table, words] : {std::pair{perplexity, "trained on 64"},
                                     std::pair{retrieval, "share of answers that are right"}}) {
    const auto with = [&](const char* option) {
      std::vector<std::string> arguments = eval;
      arguments.insert(arguments.end(), table.begin(), table.end());
      arguments.insert(arguments.end(), {option, "-"});
      const RunResult result = ExpectExit(Halflife(arguments), 0, {words});
      return result.out;
    };
    const auto json = nlohmann::json::parse(with("--out"), nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(json.is_object());
    EXPECT_EQ(json["rows"].size(), 2u) << "a length that is named twice is one";
    const std::string csv = with("--csv"), figure = with("--figure");
    EXPECT_TRUE(csv.starts_with("model,train_len,")) << csv;
    EXPECT_EQ(std::ranges::count(csv, '\n'), 3) << csv;
    EXPECT_TRUE(figure.starts_with("<svg ") && figure.ends_with("</svg>\n")) << figure;
  }
}

// Needle tables by depth and length are resumed and distributed over ranks like tables of losses.
TEST_F(Eval, NeedlesAreHiddenByDepthAndLength) {
  const auto eval = [&](const std::vector<std::string>& more) {
    return Append({"eval", "--model", Path("run"), "--data", Path("data"), "--samples", "3",
                   "--lengths", "96,128", "--depths", "0,1", "--retrieval"},
                  more);
  };
  const std::string out = Path("needles.json");
  const RunResult first =
      ExpectExit(Halflife(eval({"passkey", "--out", out, "--csv", Path("needles.csv")})), 0);
  EXPECT_THAT(first.out, HasSubstr("passkey, as_trained: share of answers that are right\n"
                                   "depth       96        128       \n0.00        0.000"));
  auto json = nlohmann::json::parse(std::ifstream(out));
  ASSERT_EQ(json["rows"].size(), 4u);
  EXPECT_EQ(json["rows"][1]["depth"], 1);
  EXPECT_EQ(json["rows"][1]["answers"], 3);
  EXPECT_EQ(json["rows"][1]["tokens"], 15);
  json["rows"].erase(2);
  json["rows"][0]["loss"] = -1;  // Marks a row, which must not be scored again.
  std::ofstream(out) << json.dump();
  ExpectExit(Halflife(eval({"passkey", "--out", out, "--figure", Path("n.svg")})), 0);
  json = nlohmann::json::parse(std::ifstream(out));
  ASSERT_EQ(json["rows"].size(), 4u);
  EXPECT_EQ(json["rows"][0]["loss"], -1);
  EXPECT_TRUE(std::filesystem::exists(Path("n.svg")));

  const std::vector<std::string> pairs =
      Append({kProgram}, eval({"mqar", "--pairs", "3", "--json"}));
  const RunResult one = RunCommand(pairs), two = RunRanks(2, pairs);
  ASSERT_EQ(two.exit_code, 0) << two.err;
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(nlohmann::json::parse(two.out)["rows"][i]["loss"],
                nlohmann::json::parse(one.out)["rows"][i]["loss"], 1e-6);

  const auto says = [&](const std::vector<std::string>& more, const std::string& words) {
    ExpectExit(Halflife(eval(more)), 2, {words});
  };
  says({"passkey", "--lengths", "64"}, "rows of 64 tokens are too short");
  says({"passkey", "--recall"}, "--recall and --retrieval exclude each other");
  says({"passkey", "--pairs", "3"}, "--pairs does nothing with --retrieval passkey");
  for (const char* task : {"multi_key", "multi_value", "variables"}) {
    const RunResult ruler = Halflife({"eval", "--model", Path("run"), "--data", Path("data"),
                                      "--samples", "3", "--lengths", "400", "--depths", "0.5",
                                      "--retrieval", task, "--pairs", "3", "--json"});
    ASSERT_EQ(ruler.exit_code, 0) << ruler.err;
    EXPECT_EQ(nlohmann::json::parse(ruler.out)["rows"][0]["answers"],
              std::string(task) == "multi_key" ? 3 : 9);
  }
  says({"variables", "--pairs", "14"}, "--pairs 14: two chains of variables");
  says({"mqar", "--pairs", "300"}, "--pairs 300: a haystack of 128 tokens leaves ");
  says({"mqar", "--out", out}, "holds rows of another retrieval: \"passkey\", here \"mqar\"");
  const RunResult seed = Halflife(
      {"eval", "--model", Path("run"), "--data", Path("data"), "--lengths", "64", "--seed", "3"});
  EXPECT_THAT(seed.err, HasSubstr("--seed does nothing without --retrieval. Use --retrieval "
                                  "passkey|mqar|multi_key|multi_value|variables"));
}

// Starts two ranks. The second one has the argument `to` instead of `from`.
class RanksThatDisagree : public Eval {
 protected:
  static RunResult Run(const std::vector<std::string>& arguments, const std::string& from,
                       const std::string& to) {
    const std::string script = Path("disagree.sh");
    std::ofstream(script) << "#!/bin/bash\nargs=()\nfor arg in \"$@\"; do\n"
                             "  if [ \"$OMPI_COMM_WORLD_RANK\" = 1 ] && [ \"$arg\" = '"
                          << from << "' ]; then arg='" << to
                          << "'; fi\n  args+=(\"$arg\")\ndone\nexec \"${args[@]}\"\n";
    return RunRanks(2, Append({"bash", script, kProgram}, arguments),
                    {.timeout_s = 60});  // The deadline of a collective is 180 s.
  }
};

TEST_F(RanksThatDisagree, EvalSaysInWhat) {
  ExpectExit(
      Halflife({"prepare", "--input", Path("text.txt"), "--documents", "blank_lines", "--tokenizer",
                "bytes", "--out", Path("less"), "--validation-fraction", "0.1"}),
      0);
  const std::vector<std::string> eval = {"eval",       "--model",   Path("run"), "--data",
                                         Path("data"), "--windows", "5"};
  const auto hash = [](const char* data) { return Inspect(Path(data))["hash"].get<std::string>(); };
  ExpectExit(
      Run(eval, Path("data"), Path("less")), 2,
      {"the ranks disagree: the text is --data " + Path("data") + " --split validation (hash " +
       hash("data") + ") on rank 0, --data " + Path("less") + " --split validation (hash " +
       hash("less") + ") on rank 1. Give every rank the same."});
  ExpectExit(Run(eval, "5", "6"), 2, {"disagree: --windows is 5 on rank 0, 6 on rank 1"});
  ExpectExit(Run(eval, Path("run"), Path("run") + "/ckpt/step_000000000010"), 2,
             {"step_000000000010 (weights "});
  // A rank that finds no text ends the others.
  ExpectExit(Run(eval, Path("data"), Path("none")), 3,
             {"there is no dataset folder " + Path("none")});

  // The same content at another path is accepted.
  std::filesystem::copy(Path("data"), Path("copy"), std::filesystem::copy_options::recursive);
  ExpectExit(Run(eval, Path("data"), Path("copy")), 0);
}

TEST_F(RanksThatDisagree, ScoreSaysInWhat) {
  std::ofstream(Path("a.txt")) << "the river";
  std::ofstream(Path("b.txt")) << "the stone";
  const std::vector<std::string> score = {"score",       "--model", Path("run"),    "--text",
                                          Path("a.txt"), "--out",   Path("s.jsonl")};
  ExpectExit(Run(score, Path("a.txt"), Path("b.txt")), 2,
             {"the ranks disagree: the text is --text " + Path("a.txt"),
              "--text " + Path("b.txt") + " (hash "});
  EXPECT_FALSE(std::filesystem::exists(Path("s.jsonl")));
}

}  // namespace
}  // namespace halflife::test
