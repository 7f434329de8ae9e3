// Every kind that inspect supports, created by the program itself, is recognised and has exactly
// the JSON keys that docs/inspect.md lists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "ckpt/safetensors.h"
#include "cli/inspect/artifact.h"
#include "core/files.h"
#include "dist/flight_recorder.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/run_fixture.h"

namespace halflife::cli::inspect {
namespace {

using test::RunFixture;
using testing::HasSubstr;

class InspectKindsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    fixture = new RunFixture();
    const auto trained =
        fixture->Run({.run = "run", .set = {"train.steps=4", "ckpt.every=2", "eval.every=2"}});
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
    dist::FlightRecorder(0, 2).KeepIn(fixture->path("flight"), "a");  // A rank that has ended.
    const std::filesystem::path hf = fixture->path("hf");
    std::filesystem::create_directories(hf);
    std::ofstream(hf / "config.json") << R"({"model_type": "gla"})";
    const std::string head = ckpt::safetensors::BuildHeader(
        {{"w", ckpt::StoredDType::kF32, {1}, 0, 4}}, {{"format", "pt"}}, 8);
    std::ofstream(hf / "model.safetensors") << head << std::string(4, '\0');
  }
  static void TearDownTestSuite() { delete fixture; }

  static std::vector<std::pair<std::string, std::string>> Paths() {
    return {{"dataset", "data"},
            {"dataset_shard", "data/train-00000.h5"},
            {"tokenizer", "data/tokenizer"},
            {"run", "run"},
            {"checkpoint", "run/ckpt/step_000000000004"},
            {"recipe", "recipe.textproto"},
            {"metrics", "run/metrics.jsonl"},
            {"events", "run/events"},
            {"flight", "flight"},
            {"hf_model", "hf"},
            {"safetensors", "run/ckpt/step_000000000004/rank_00000.safetensors"}};
  }
  static RunFixture* fixture;
};
RunFixture* InspectKindsTest::fixture = nullptr;

// Returns the first column of the table under "## kind", one `key` per row.
std::set<std::string> DocumentedKeys(const std::string& kind) {
  std::istringstream lines(
      ReadFile(std::string(test::kSourceDir) + "/docs/inspect.md", ExitCode::kInternal));
  std::set<std::string> keys;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) inside = line == "## " + kind;
    if (!inside || !line.starts_with("| `")) continue;
    keys.insert(line.substr(3, line.find('`', 3) - 3));
  }
  return keys;
}

nlohmann::ordered_json Scalar(const nlohmann::ordered_json& events, const std::string& tag) {
  for (const auto& row : events["scalars"]) {
    if (row["tag"] == tag) return row;
  }
  return nullptr;
}

TEST_F(InspectKindsTest, EachIsRecognisedAndItsKeysAreDocumented) {
  std::set<std::string> seen;
  for (const auto& [kind, name] : Paths()) {
    SCOPED_TRACE(kind);
    const auto json = Describe(fixture->path(name));
    EXPECT_EQ(json["kind"], kind);
    EXPECT_EQ(json["path"], fixture->path(name).string());
    seen.insert(json["kind"].get<std::string>());
    std::set<std::string> keys;
    for (const auto& [key, value] : json.items()) keys.insert(key);
    keys.erase("kind");
    keys.erase("path");
    EXPECT_EQ(keys, DocumentedKeys(kind));
    EXPECT_GT(Text(fixture->path(name)).size(), 20u);
  }
  for (const Artifact& artifact : Artifacts()) {
    EXPECT_TRUE(seen.contains(artifact.kind)) << artifact.kind << " is not tested";
  }
}

TEST_F(InspectKindsTest, ValuesAreThoseOfTheRun) {
  const auto run = Describe(fixture->path("run"));
  EXPECT_EQ(run["finished"], true);
  EXPECT_EQ(run["checkpoints"], 2);
  EXPECT_EQ(run["last_step"]["step"], 4);
  EXPECT_EQ(run["checkpoint"]["step"], 4);
  // With a trailing slash.
  const auto step = Describe(fixture->path("run/ckpt/step_000000000004/"));
  EXPECT_EQ(step["tokens"], run["checkpoint"]["tokens"]);
  const auto metrics = Describe(fixture->path("run/metrics.jsonl"));
  EXPECT_EQ(metrics["steps"], 4);
  EXPECT_EQ(metrics["damaged_lines"], 0);
  EXPECT_EQ(metrics["last_step"], run["last_step"]);
  EXPECT_EQ(metrics["saves"], 2);
  EXPECT_EQ(metrics["tokens"], step["tokens"]);
  EXPECT_GE(metrics["seconds_in_attempts"].get<double>(),
            0.9 * metrics["seconds_in_steps"].get<double>());
  const auto events = Describe(fixture->path("run/events"));
  EXPECT_EQ(events["damaged_bytes"], 0);
  EXPECT_EQ(Scalar(events, "train/loss")["points"], 4);
  EXPECT_EQ(Scalar(events, "train/loss")["last_step"], 4);
  EXPECT_EQ(Scalar(events, "train/loss")["last"].get<float>(),
            run["last_step"]["loss"].get<float>());
  EXPECT_EQ(Scalar(events, "val/loss")["points"], metrics["validations"]);
  const auto tokenizer = Describe(fixture->path("run/tokenizer"));
  EXPECT_EQ(tokenizer["tokenizer"], "bytes");
  EXPECT_EQ(tokenizer["hash"], Describe(fixture->path("data/tokenizer"))["hash"]);
  const auto recipe = Describe(fixture->path("recipe.textproto"));
  EXPECT_GT(recipe["parameters"]["total"], 0);
  EXPECT_THAT(recipe["config_text"].get<std::string>(), HasSubstr("seq_len"));
  EXPECT_EQ(recipe["vocab_assumed"], true);
  int64_t bytes = 0;
  for (const auto& [part, value] : recipe["memory_of_one_rank"].items())
    bytes += part == "total_bytes" ? -value.get<int64_t>() : value.get<int64_t>();
  EXPECT_NEAR(bytes, 0, 10) << "parts are whole bytes";
  EXPECT_EQ(recipe["steps"], 20);
  std::ofstream(fixture->path("epochs.textproto"))
      << "model { vocab_size: 259 } train { max_epochs: 2 }";
  const auto epochs = Describe(fixture->path("epochs.textproto"));
  EXPECT_EQ(epochs["vocab_assumed"], false);
  EXPECT_TRUE(epochs["steps"].is_null()) << "its dataset is not known";
  EXPECT_TRUE(epochs["tokens"].is_null());
  std::ofstream(fixture->path("short.textproto"))
      << "data { path: '" << fixture->path("data").string() << "' seq_len: 64 epoch_end: 'short' } "
      << "train { max_epochs: 2 global_batch: 1000 }";
  const auto shortened = Describe(fixture->path("short.textproto"));
  const int64_t rows = Describe(fixture->path("data"))["train"]["tokens"].get<int64_t>() / 64;
  EXPECT_GT(shortened["tokens"], 2 * 64 * (rows - 1));
  EXPECT_LE(shortened["tokens"], 2 * 64 * rows) << "the last step of an epoch has what is left";
}

// A run of 40 steps that went back to step 20 and ended at step 30.
TEST_F(InspectKindsTest, StepsThatARunWentBackFromAreLeftOut) {
  std::ofstream file(fixture->path("went_back.jsonl"));
  const auto line = [&](const char* attempt, int step, double loss, bool validated) {
    file << "{\"step\":" << step << ",\"loss\":" << loss << ",\"step_ms\":10,\"attempt\":\""
         << attempt << "\"}\n";
    if (validated)
      file << "{\"step\":" << step << ",\"val_loss\":" << loss << ",\"attempt\":\"" << attempt
           << "\"}\n";
  };
  for (int step = 1; step <= 40; ++step) line("a", step, 5 - 0.1 * step, step % 10 == 0);
  for (int step = 21; step <= 30; ++step) line("b", step, 9, step % 10 == 0);
  file.close();
  const auto metrics = Describe(fixture->path("went_back.jsonl"));
  EXPECT_EQ(metrics["steps"], 30);
  EXPECT_EQ(metrics["last_step"]["step"], 30);
  EXPECT_EQ(metrics["last_validation"]["val_loss"], 9);
  EXPECT_EQ(metrics["best_validation"]["step"], 20);
  EXPECT_EQ(metrics["least_loss"]["step"], 20);
  EXPECT_EQ(metrics["validations"], 3);
}

TEST_F(InspectKindsTest, ARenamedStepIsStillOne) {
  std::filesystem::copy(fixture->path("run/ckpt/step_000000000002"), fixture->path("best"));
  EXPECT_EQ(Describe(fixture->path("best"))["kind"], "checkpoint");
}

// Impossible sizes are reported, and not used as divisors.
TEST_F(InspectKindsTest, ARecipeThatNoRunCouldUse) {
  std::ofstream(fixture->path("zero.textproto")) << "train { micro_batch: 0 }";
  EXPECT_HL_ERROR(Describe(fixture->path("zero.textproto")), ExitCode::kUsage,
                  "train.micro_batch: 0");
}

// A read error differs from the end of a file. Reading a folder fails like reading from a failing
// disk.
TEST_F(InspectKindsTest, MetricsThatCannotBeRead) {
  EXPECT_HL_ERROR(DescribeMetrics(fixture->path("data")), ExitCode::kData, "cannot read",
                  "Check its");
}

TEST_F(InspectKindsTest, MetricsOfAResumedRunWithATornLine) {
  std::ofstream(fixture->path("torn.jsonl"))
      << R"({"step":1,"loss":3.0,"step_ms":100,"tokens_per_s":1000,"attempt":"a"})"
         "\n"
      << R"({"step":2,"loss":9.0,"step_ms":100,"tokens_per_s":1000,"attempt":"a"})"
         "\n"
      << R"({"step":2,"loss":null,"skipped":true,"step_ms":300,"tokens_per_s":3000,"attempt":"b"})"
         "\n"
      << R"({"step":2,"val_loss":2.5,"attempt":"b"})"
         "\n"
      << R"({"step":1,"val_loss":2.0,"attempt":"b"})"
         "\n"
      << R"({"step":9,"loss":1.0,"attempt":"b","deep":)" << std::string(100000, '[')
      << std::string(100000, ']') << "}\n"
      << R"({"step":3,"lo)";
  const auto json = Describe(fixture->path("torn.jsonl"));
  EXPECT_EQ(json["lines"], 7);
  EXPECT_EQ(json["damaged_lines"], 2);
  EXPECT_EQ(json["attempts"], 2);
  EXPECT_EQ(json["steps"], 2);
  EXPECT_EQ(json["skipped_steps"], 1);
  EXPECT_EQ(json["nonfinite_losses"], 1);
  EXPECT_EQ(json["least_loss"]["step"], 1);
  EXPECT_DOUBLE_EQ(json["mean_tokens_per_s"], (0.1 * 1000 + 0.3 * 3000) / 0.4);
  EXPECT_EQ(json["last_validation"]["step"], 2);
  EXPECT_EQ(json["best_validation"]["step"], 1);
  EXPECT_TRUE(json["tokens"].is_null() && json["seconds_in_attempts"].is_null()) << json;
}

TEST_F(InspectKindsTest, AnythingElseIsAnErrorThatListsWhatIsKnown) {
  EXPECT_HL_ERROR(Describe(fixture->path("text.txt")), ExitCode::kUsage, "text.txt", "dataset",
                  "metrics.jsonl", "Hugging Face", "safetensors", "textproto", "tfevents",
                  "tokenizer");
  std::ofstream(fixture->path("text.jsonl")) << R"({"text": "a", "step": 3})"
                                             << "\n";
  EXPECT_HL_ERROR(Describe(fixture->path("text.jsonl")), ExitCode::kUsage, "text.jsonl");
  EXPECT_HL_ERROR(Describe("/no/such/path"), ExitCode::kUsage, "/no/such/path", "does not exist",
                  "Use the path of one of these:\n", "tfevents");
  const auto result = fixture->Halflife({"inspect", "--json", fixture->path("run").string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["kind"], "run");
}

}  // namespace
}  // namespace halflife::cli::inspect
