// score, export, import and --init-from on a small trained run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;

class ScoreExport : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    RunResult result = fixture->Run({.run = "run", .set = {"train.steps=30", "ckpt.every=0"}});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    result = Halflife({"export", "--run", Path("run"), "--out", Path("hf")});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::ofstream(fixture->path("text.txt")) << MakeText(3000, 9);
  }

  static std::vector<double> Score(const std::string& model,
                                   const std::vector<std::string>& input) {
    ExpectExit(Halflife(Append({"score", "--model", model, "--out", Path("out.jsonl")}, input)), 0);
    std::vector<double> scores;
    std::ifstream file(Path("out.jsonl"));
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      EXPECT_EQ(json["logprobs"].size() + 1, json["ids"].size());
      for (const double value : json["logprobs"]) scores.push_back(value);
    }
    return scores;
  }
  static void ExpectFailure(const std::vector<std::string>& arguments, int code,
                            const std::vector<std::string>& words) {
    const RunResult result = Halflife(arguments);
    EXPECT_EQ(result.exit_code, code) << result.err;
    for (const std::string& word : words) EXPECT_THAT(result.err, HasSubstr(word));
  }
};

// The average of a run's weights is used by name, and an exported average is the model's weights.
TEST_F(ScoreExport, TheAverageOfTheWeightsIsScoredAndExported) {
  ExpectExit(fixture->Run({.run = "averaged",
                           .set = {"train.steps=30", "ckpt.every=0", "optimizer.ema_decay=0.5",
                                   "optimizer.algorithm=muon"}}),
             0);
  const std::vector<std::string> text = {"--text", Path("text.txt")};
  const std::vector<double> main = Score(Path("averaged"), text),
                            average = Score(Path("averaged"), Append(text, {"--weights", "ema"}));
  EXPECT_NE(average, main);
  ExpectExit(Halflife({"export", "--run", Path("averaged"), "--out", Path("averaged-hf"),
                       "--weights", "ema"}),
             0);
  const std::vector<double> exported = Score(Path("averaged-hf"), text);
  ASSERT_EQ(exported.size(), average.size());
  for (size_t i = 0; i < average.size(); ++i) EXPECT_NEAR(exported[i], average[i], 1e-5) << i;
  ExpectFailure({"score", "--model", Path("run"), "--text", Path("text.txt"), "--weights", "ema",
                 "--out", Path("out.jsonl")},
                2, {"has no average of the weights. Use --weights main, or train with"});
  ExpectFailure({"score", "--model", Path("hf"), "--text", Path("text.txt"), "--weights", "ema",
                 "--out", Path("out.jsonl")},
                2, {"is a folder of transformers", "Use --weights main."});
}

TEST_F(ScoreExport, RunStepAndExportedFolderAgree) {
  const std::vector<std::string> text = {"--text", Path("text.txt")};
  const std::vector<double> run = Score(Path("run"), text);
  ASSERT_EQ(run.size() + 1, std::filesystem::file_size(Path("text.txt")));  // Tokens are bytes.
  double sum = 0;
  for (const double score : run) sum -= score;
  EXPECT_LT(sum / static_cast<double>(run.size()), 0.7 * std::log(259.0))
      << "it was trained on such text";
  for (const std::string& other : {Path("run") + "/ckpt/step_000000000030", Path("hf")}) {
    const std::vector<double> scores = Score(other, text);
    ASSERT_EQ(scores.size(), run.size());
    for (size_t i = 0; i < run.size(); ++i) EXPECT_NEAR(scores[i], run[i], 1e-5) << other;
  }
}

// RUN@best and RUN@N name one step in every command. The step with the lowest validation loss is
// the one that `ckpt ls` marks.
TEST_F(ScoreExport, AStepIsNamedAfterItsRun) {
  ExpectExit(fixture->Run({.run = "steps",
                           .set = {"train.steps=12", "eval.every=4", "ckpt.every=4",
                                   "ckpt.keep_last=9", "ckpt.keep_best=val_loss"}}),
             0);
  double lowest = INFINITY;
  int64_t best = 0;
  for (const auto& line : fixture->Metrics("steps", "val_loss")) {
    if (line["val_loss"].get<double>() >= lowest) continue;
    lowest = line["val_loss"];
    best = line["step"];
  }
  const auto rows = nlohmann::json::parse(Halflife({"ckpt", "ls", Path("steps"), "--json"}).out);
  for (const auto& row : rows) {
    EXPECT_EQ(!row["best"].is_null(), row["step"] == best) << row;
    EXPECT_EQ(row["best"].is_null() ? "val_loss" : row["best"]["metric"], "val_loss") << row;
  }
  const auto step_of = [](const std::string& model) {
    const RunResult result =
        ExpectExit(Halflife({"eval", "--model", model, "--text", Path("text.txt"), "--json"}), 0);
    return nlohmann::json::parse(result.out)["step"].get<int64_t>();
  };
  EXPECT_EQ(step_of(Path("steps") + "@8"), 8);
  EXPECT_EQ(step_of(Path("steps") + "@latest"), 12);
  EXPECT_EQ(step_of(Path("steps") + "@best"), best);

  const std::string four = Path("steps") + "/ckpt/step_000000000004";
  EXPECT_EQ(Score(Path("steps") + "@4", {"--text", Path("text.txt")}),
            Score(four, {"--text", Path("text.txt")}));
  const RunResult exported =
      ExpectExit(Halflife({"export", "--run", Path("steps") + "@4", "--out", Path("four")}), 0);
  EXPECT_THAT(exported.out, HasSubstr(four + " -> "));
  ExpectExit(Halflife({"generate", "--model", Path("steps") + "@best", "--prompt", "the river",
                       "--max-tokens", "4"}),
             0,
             {"steps@best is step " + std::to_string(best) + ", which has the lowest val_loss, "});
  ExpectExit(fixture->Run({.run = "from_four",
                           .set = {"train.steps=1"},
                           .flags = {"--init-from", Path("steps") + "@4"}}),
             0);
  ExpectFailure({"eval", "--model", Path("steps") + "@5", "--text", Path("text.txt")}, 76,
                {"has no step '5'", "Use latest, best, or one of 12, 8, 4."});
}

TEST_F(ScoreExport, AnyNumberOfRanksWritesTheSameBytes) {
  std::ofstream(fixture->path("ids.json"))
      << "[[5,6,7,8],[70,71],[9],[],[100,101,102,103,104,105]]";
  std::vector<std::string> outputs;
  for (const int ranks : {1, 2}) {
    std::vector<std::string> command = {
        kProgram,         "score", "--model",           Path("run"),      "--tokens",
        Path("ids.json"), "--out", Path("ranks.jsonl"), "--batch-tokens", "4",
        "--threads",      "1"};
    ExpectExit(ranks == 1 ? RunCommand(command) : RunRanks(ranks, command), 0);
    outputs.push_back(Read("ranks.jsonl"));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_THAT(outputs[0],
              HasSubstr("{\"ids\":[9],\"logprobs\":[]}\n{\"ids\":[],\"logprobs\":[]}\n"));
}

// mpirun connects standard input to rank 0. The other ranks have an empty one.
TEST_F(ScoreExport, StandardInputIsScoredByAllRanks) {
  const std::string score = std::string(kProgram) + " score --model " + Path("run") +
                            " --text - --out " + Path("piped.jsonl") + " --threads 1";
  ExpectExit(RunRanks(2, {"bash", "-c",
                          "if [ $OMPI_COMM_WORLD_RANK = 0 ]; then exec " + score + " <" +
                              Path("text.txt") + "; else exec " + score + " </dev/null; fi"}),
             0);
  Score(Path("run"), {"--text", Path("text.txt")});
  EXPECT_EQ(Read("piped.jsonl"), Read("out.jsonl"));
}

TEST_F(ScoreExport, TokensMayComeFromAPipe) {
  const std::string tokens = "[[70,71,1,80],[90,91,1,80]]";
  std::ofstream(Path("chats.json")) << tokens;
  const auto score = [&](const std::string& source, const std::string& before = "") {
    const RunResult result =
        ExpectExit(RunCommand({"bash", "-c",
                               before + std::string(kProgram) + " score --model " + Path("run") +
                                   " --out - --tokens " + source}),
                   0);
    return result.out;
  };
  const std::string file = score(Path("chats.json")), echo = "echo '" + tokens + "'";
  EXPECT_EQ(score("<(" + echo + ")"), file);
  EXPECT_EQ(score("-", echo + " | "), file);
  EXPECT_EQ(score("/dev/stdin", echo + " | "), file);
  ExpectFailure({"score", "--model", Path("run"), "--out", "-", "--tokens", Path("none.json")}, 3,
                {"cannot open " + Path("none.json")});

  // The score of the token after an eos, 1, depends on earlier tokens.
  std::vector<double> last;
  std::istringstream lines(file);
  for (std::string line; std::getline(lines, line);)
    last.push_back(nlohmann::json::parse(line)["logprobs"].back());
  ASSERT_EQ(last.size(), 2u);
  EXPECT_NE(last[0], last[1]);
}

TEST_F(ScoreExport, WhatIsMissingOrDamagedIsNamed) {
  const std::string run = Path("run");
  ExpectFailure(
      {"generate", "--model", run, "--prompt", "a", "--tokenizer", Path("no_tokenizer")}, 3,
      {"--tokenizer " + Path("no_tokenizer") + " is neither `bytes` nor an existing file"});
  ExpectFailure({"eval", "--model", run, "--data", Path("data"), "--split", "test"}, 3,
                {"test", "has no tokens", "Use another split"});
  ExpectFailure({"report", run, "--out", Path("page.pdf")}, 2,
                {"page.pdf", "report.html", "report.svg"});
  std::filesystem::copy(run, Path("damaged"), std::filesystem::copy_options::recursive);
  const std::string step = Path("damaged") + "/ckpt/step_000000000030";
  {
    const auto shard = step + "/rank_00000.safetensors";
    const auto bytes = static_cast<std::streamoff>(std::filesystem::file_size(shard));
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    for (std::streamoff at = 4096; at < bytes; at += 4096) file.seekp(at) << "damage!!";
  }
  ExpectFailure(
      {"eval", "--model", Path("damaged"), "--data", Path("data")}, 76,
      {step + " is damaged: rank_00000.safetensors", "hash mismatch", "`halflife ckpt ls` lists"});
}

TEST_F(ScoreExport, EvalAndGenerateTakeTheExportedFolder) {
  ExpectExit(Halflife({"eval", "--model", Path("hf"), "--data", Path("data"), "--windows", "4"}),
             0);
  std::vector<std::string> texts;
  for (const char* model : {"run", "hf"})
    texts.push_back(Halflife({"generate", "--model", Path(model), "--prompt", "the river",
                              "--max-tokens", "20", "--temperature", "0"})
                        .out);
  EXPECT_EQ(texts[0], texts[1]);
}

TEST_F(ScoreExport, AnImportedRunTrainsOn) {
  ExpectExit(Halflife({"import", "--from", Path("hf"), "--out", Path("imported")}), 0);
  const RunResult inspected = Halflife({"ckpt", "ls", Path("imported")});
  // A recipe that would lose everything in a crash is refused.
  const std::string recipe =
      Halflife({"recipe", "--config", Path("imported") + "/config.textproto"}).out;
  for (const char* safe :
       {"every: 100\n  windows: 64", "every: 100\n  keep_last", "warmup_steps: 100"})
    EXPECT_THAT(recipe, HasSubstr(safe));
  EXPECT_THAT(inspected.out, HasSubstr("0     ok")) << inspected.out << inspected.err;
  ExpectExit(Halflife({"train", "--config", Path("imported") + "/config.textproto", "--run",
                       Path("imported"), "--set", "data.path=" + Path("data"), "--set",
                       "data.seq_len=64", "--set", "train.steps=2"}),
             0);
  const double before = fixture->Metrics("run", "loss").back()["loss"];
  const double after = fixture->Metrics("imported", "loss").front()["loss"];
  EXPECT_LT(after, 1.3 * before) << "goes on from what was learned";
}

TEST_F(ScoreExport, WhatImportSuggestsWorks) {
  const auto suggested = [](const RunResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const size_t begin = result.out.find("next: halflife ") + 15;
    return result.out.substr(begin, result.out.find('\n', begin) - begin);
  };
  const std::string own =
      suggested(Halflife({"import", "--from", Path("hf"), "--out", Path("with_tokenizer")}));
  EXPECT_EQ(own, "generate --model " + Path("with_tokenizer") + " --prompt ...");
  std::filesystem::copy(Path("hf"), Path("hf_bare"));
  std::filesystem::remove(Path("hf_bare") + "/tokenizer_config.json");
  const std::string named =
      suggested(Halflife({"import", "--from", Path("hf_bare"), "--out", Path("bare")}));
  EXPECT_EQ(named, "generate --model " + Path("bare") + " --tokenizer FILE --prompt ...");
  const RunResult result =
      ExpectExit(RunCommand({"bash", "-c",
                             std::string(kProgram) + " " +
                                 std::string(named).replace(named.find("FILE"), 4, "bytes")}),
                 0);
  EXPECT_EQ(result.out.find("..."), 0u) << result.out;
}

TEST_F(ScoreExport, ChatTemplatesGoThroughARun) {
  std::filesystem::copy(Path("hf"), Path("hf_chat"));
  std::ofstream(Path("hf_chat") + "/chat_template.jinja") << "{{ messages }}\n";
  ExpectExit(Halflife({"import", "--from", Path("hf_chat"), "--out", Path("chat")}), 0);
  EXPECT_EQ(Read("chat/tokenizer/chat_template.jinja"), "{{ messages }}\n");
  ExpectExit(Halflife({"export", "--run", Path("chat"), "--out", Path("hf_again")}), 0);
  EXPECT_EQ(Read("hf_again/chat_template.jinja"), "{{ messages }}\n");
}

TEST_F(ScoreExport, InitFromStartsWithTheWeights) {
  for (const char* source : {"run", "hf"}) {
    const std::string name = std::string("warm_") + source;
    const RunResult result = ExpectExit(
        fixture->Run(
            {.run = name, .set = {"train.steps=2"}, .flags = {"--init-from", Path(source)}}),
        0);
    EXPECT_NE((result.out + result.err).find("started from"), std::string::npos) << result.err;
    const double before = fixture->Metrics("run", "loss").back()["loss"];
    EXPECT_LT(fixture->Metrics(name, "loss").front()["loss"].get<double>(), 1.3 * before);
  }
  ExpectExit(fixture->Run({.run = "warm_wrong",
                           .set = {"train.steps=2", "model.channel_mixer.swiglu.width=40"},
                           .flags = {"--init-from", Path("run")}}),
             2, {"mlp.gate_proj.weight: file ["});
}

// JSON cannot represent NaN or infinity. The last tensor of the file is one of the model's norms.
TEST_F(ScoreExport, ScoresThatAreNotFiniteAreNull) {
  const std::string folder = Path("infinite"), text = Path("few.txt");
  std::filesystem::copy(Path("hf"), folder);
  std::ofstream(text) << "the river";
  const std::string weights = folder + "/model.safetensors";
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-4, std::ios::end);
  const float not_a_number = std::nanf("");
  file.write(reinterpret_cast<const char*>(&not_a_number), sizeof not_a_number);
  file.close();
  ExpectExit(Halflife({"score", "--model", folder, "--text", text, "--out", Path("nan.jsonl")}), 0,
             {"[warning] score: 8 of 8 scores are not finite: null in "});
  const auto json = nlohmann::json::parse(Read("nan.jsonl"));
  ASSERT_EQ(json["logprobs"].size(), 8u);
  for (const auto& score : json["logprobs"]) EXPECT_TRUE(score.is_null()) << json;
}

// The output is checked before anything is loaded: the model does not exist, either.
TEST_F(ScoreExport, AnInvalidOutputIsReportedBeforeTheWork) {
  const std::string none = Path("none/table"), model = Path("no-model");
  ExpectFailure({"score", "--model", model, "--text", Path("text.txt"), "--out", none}, 4,
                {"cannot open " + none + " for writing: No such file"});
  for (const char* option : {"--out", "--csv", "--figure"})
    ExpectFailure(
        {"eval", "--model", model, "--data", Path("data"), "--lengths", "64", option, none}, 4,
        {"cannot open " + none + " for writing: No such file"});
  ExpectFailure({"eval", "--model", model, "--text", Path("text.txt"), "--explain", none}, 4,
                {"cannot open " + none + " for writing: No such file"});
}

// Shell completion writes folders with a trailing slash. Every spelling leaves only the result.
TEST_F(ScoreExport, AFolderToWriteMayEndInASlash) {
  const std::string out = Path("slashes");
  std::filesystem::create_directory(out);
  const std::vector<std::vector<std::string>> commands = {
      {"export", "--run", Path("run"), "--out", out + "/hf/"},
      {"import", "--from", Path("hf"), "--out", out + "/run/"},
      {"ckpt", "reshard", Path("run"), "--world", "2", "--out", out + "/step/"}};
  for (const std::vector<std::string>& command : commands) {
    ExpectExit(Halflife(command), 0);
    ExpectFailure(command, 2, {"exists already"});
  }
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(out))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"hf", "run", "step"}));
  EXPECT_EQ(Score(out + "/run", {"--text", Path("text.txt")}),
            Score(Path("hf"), {"--text", Path("text.txt")}));
}

TEST_F(ScoreExport, BadInput) {
  const auto score = [](const std::string& tokens) {
    std::ofstream(fixture->path("bad.json")) << tokens;
    return std::vector<std::string>{"score",          "--model", Path("run"),        "--tokens",
                                    Path("bad.json"), "--out",   Path("never.jsonl")};
  };
  ExpectFailure(score("{}"), 3, {"is not a JSON list of lists", "Write for example [[5"});
  ExpectFailure(score("[[1],[\"a\"]]"), 3,
                {"entry 1 holds \"a\", which is not an id. Use whole numbers"});
  ExpectFailure(score("[[1, 100000]]"), 2,
                {"token 100000 at index 1", "vocabulary of 259. Use ids of 0 to 258."});
  EXPECT_FALSE(std::filesystem::exists(Path("never.jsonl")));
  ExpectFailure({"score", "--model", Path("run"), "--out", Path("never.jsonl")}, 2,
                {"--tokens FILE.json or --text"});
  ExpectFailure({"export", "--run", Path("run"), "--out", Path("hf")}, 2, {"exists already"});
  ExpectFailure({"export", "--run", Path("run"), "--out", Path("never"), "--model-type", "llama"},
                2, {"llama is for the mixer softmax"});
  ExpectFailure({"import", "--from", Path("data"), "--out", Path("never")}, 3,
                {"no config.json in"});
  ExpectFailure({"import", "--from", Path("hf"), "--out", Path("run")}, 2, {"exists already"});

  std::filesystem::copy(Path("hf"), Path("broken"));
  std::string config = Read("hf/config.json");
  const auto write_config = [&](const std::string& from, const std::string& to) {
    std::string text = config;
    ASSERT_NE(text.find(from), std::string::npos) << text;
    text.replace(text.find(from), from.size(), to);
    std::ofstream(Path("broken") + "/config.json") << text;
  };
  const std::vector<std::string> import = {"import", "--from", Path("broken"), "--out",
                                           Path("never")};
  write_config("\"model_type\": \"gla\"", "\"model_type\": \"bert\"");
  ExpectFailure(import, 3,
                {"model_type is 'bert', which is not known. Use a model with one of llama, "
                 "mistral, qwen3, qwen2, transformer, gpt2, "
                 "retnet, gla"});
  write_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  ExpectFailure(
      import, 3,
      {"missing: model.layers.2.attn_norm.weight", "missing: model.layers.2.mlp.down_proj.weight"});
  write_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000000");
  ExpectFailure(import, 3, {"has 1000000000 layers, but the folder holds only"});
  write_config("\"vocab_size\": 259", "\"vocab_size\": 200");
  ExpectFailure(import, 3, {"model.embeddings.weight: file [259,", "model [200,"});
  write_config("\"use_output_gate\": true", "\"use_output_gate\": false");
  ExpectFailure(import, 3, {"unexpected: model.layers.0.attn.g_proj.weight"});
  EXPECT_FALSE(std::filesystem::exists(Path("never")));
}

}  // namespace
}  // namespace halflife::test
