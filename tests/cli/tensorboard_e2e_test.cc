// TensorBoard's own readers show the numbers of metrics.jsonl, each step once, also after crashes.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "support/program_test.h"

namespace halflife::test {
namespace {

namespace fs = std::filesystem;

// metric -> step -> value. NaN: not finite.
using Series = std::map<std::string, std::map<int64_t, double>>;

const fs::path kPython = fs::path(kSourceDir) / ".venv-compare/bin/python";

class TensorBoard : public ProgramTest {
 protected:
  void SetUp() override {
    if (!fs::exists(kPython) ||
        RunCommand({kPython, "-c", "import tensorboard, tensorboard_data_server"}).exit_code != 0) {
      GTEST_SKIP() << "no .venv-compare with tensorboard here (launch/setup --tests)";
    }
  }

  // Reads metrics.jsonl. For replayed steps, the last attempt counts.
  static Series Metrics(const std::string& run) {
    std::ifstream file(fixture->path(run) / "metrics.jsonl");
    Series series;
    std::string attempt;
    for (std::string text; std::getline(file, text);) {
      const auto line = nlohmann::json::parse(text);
      const int64_t step = line["step"];
      if (line["attempt"] != attempt) {
        attempt = line["attempt"];
        for (auto& [metric, points] : series) points.erase(points.lower_bound(step), points.end());
      }
      for (const auto& [metric, value] : line.items()) {
        if (metric == "step" || metric == "attempt" || metric == "unix_ms") continue;
        // If a step has several lines, that of the trained step counts.
        const bool shared = metric == "tokens" || metric == "elapsed_s";
        if (shared && !line.contains("loss")) continue;
        series[metric][step] = value.is_null()      ? std::nan("")
                               : value.is_boolean() ? value.get<bool>()
                                                    : value.get<double>();
      }
    }
    return series;
  }
  static nlohmann::json Read(const std::string& run) {
    const RunResult result =
        ExpectExit(RunCommand({kPython, fs::path(kSourceDir) / "tests/cli/read_events.py",
                               fixture->path(run) / "events"}),
                   0);
    return nlohmann::json::parse(result.out);
  }
  // Expects that both readers show exactly these numbers, in fp32.
  static void ExpectShown(const nlohmann::json& read, const Series& expected) {
    for (const std::string reader : {"python", "server"}) {
      SCOPED_TRACE(reader);
      const auto& scalars = read[reader]["."]["scalars"];
      EXPECT_EQ(scalars.size(), expected.size()) << scalars.dump();
      for (const auto& [metric, points] : expected) {
        SCOPED_TRACE(metric);
        const auto& shown = scalars[kTags.at(metric)];
        ASSERT_EQ(shown.size(), points.size()) << shown.dump();
        size_t i = 0;
        for (const auto& [step, value] : points) {
          EXPECT_EQ(shown[i][0], step);
          if (std::isnan(value)) {
            EXPECT_TRUE(shown[i][1].is_null()) << step;
          } else {
            EXPECT_EQ(shown[i][1].get<float>(), static_cast<float>(value)) << step;
          }
          ++i;
        }
      }
    }
  }

  static const std::map<std::string, std::string> kTags;
};
const std::map<std::string, std::string> TensorBoard::kTags = {
    {"loss", "train/loss"},
    {"z_loss", "train/z_loss"},
    {"lr", "train/lr"},
    {"grad_norm", "train/grad_norm"},
    {"clip_factor", "train/clip_factor"},
    {"skipped", "train/skipped"},
    {"valid_tokens", "train/valid_tokens"},
    {"tokens", "train/tokens"},
    {"val_loss", "val/loss"},
    {"val_perplexity", "val/perplexity"},
    {"val_bits_per_byte", "val/bits_per_byte"},
    {"val_tokens", "val/tokens"},
    {"val_windows_scored", "val/windows_scored"},
    {"val_windows_available", "val/windows_available"},
    {"tokens_per_s", "perf/tokens_per_second"},
    {"elapsed_s", "perf/elapsed_s"},
    {"step_ms", "perf/step_ms"},
    {"data_wait_ms", "perf/data_wait_ms"},
    {"exposed_comm_ms", "perf/exposed_comm_ms"},
    {"exposed_grad_ms", "perf/exposed_grad_ms"},
    {"exposed_param_ms", "perf/exposed_param_ms"},
    {"exposed_rows_ms", "perf/exposed_rows_ms"},
    {"comm_bytes/control", "comm/bytes/control"},
    {"comm_bytes/world", "comm/bytes/world"},
    {"comm_bytes/ckpt", "comm/bytes/ckpt"},
    {"busy_ms_min", "perf/busy_ms_min"},
    {"busy_ms_median", "perf/busy_ms_median"},
    {"busy_ms_max", "perf/busy_ms_max"},
    {"slowest_rank", "perf/slowest_rank"},
    {"mfu_6p", "perf/mfu_6p"},
    {"mfu_full", "perf/mfu_full"},
    {"peak_flops", "perf/peak_flops"},
    {"peak_memory_bytes", "perf/peak_memory_bytes"},
    {"save_bytes", "ckpt/save_bytes"},
    {"save_ms", "ckpt/save_ms"},
    {"save_blocked_ms", "ckpt/save_blocked_ms"},
    {"save_mb_per_s", "ckpt/save_mb_per_s"},
};

TEST_F(TensorBoard, ShowsTheNumbersOfMetricsJsonl) {
  ExpectExit(fixture->Run({.run = "fresh", .ranks = 2, .set = {"eval.every=5"}}), 0);
  const auto read = Read("fresh");
  ExpectShown(read, Metrics("fresh"));
  for (const std::string reader : {"python", "server"}) {
    const auto& texts = read[reader]["."]["texts"];
    EXPECT_NE(texts["run/description"][0][1].get<std::string>().find("on 2 ranks"),
              std::string::npos)
        << texts.dump();
    EXPECT_NE(texts["run/config"][0][1].get<std::string>().find("    optimizer {"),
              std::string::npos);
  }
}

TEST_F(TensorBoard, ShowsWhatTheModelWritesAndTrainsAsWithout) {
  ExpectExit(fixture->Run({.run = "writes",
                           .set = {"eval.every=5", "eval.sample_prompt=the river",
                                   "eval.sample_tokens=20"}}),
             0);
  const auto read = Read("writes");
  for (const std::string reader : {"python", "server"}) {
    const auto& texts = read[reader]["."]["texts"]["eval/sample"];
    ASSERT_GE(texts.size(), 3u) << read.dump();
    EXPECT_EQ(texts[0][0], 0);
    EXPECT_EQ(texts[1][0], 5);
    for (const auto& text : texts) {
      EXPECT_EQ(text[1].get<std::string>().find("    the river"), 0u) << text.dump();
    }
    EXPECT_NE(texts[0][1], texts.back()[1]) << "the model has learned in between";
  }
  ExpectExit(fixture->Run({.run = "silent", .set = {"eval.every=5"}}), 0);
  EXPECT_EQ(Metrics("writes").at("loss"), Metrics("silent").at("loss"));
  EXPECT_EQ(Metrics("writes").at("val_loss"), Metrics("silent").at("val_loss"));
}

// Killed after step 12 and resumed from step 10 with other validation steps. The validation of step
// 12 is superseded, and none replaces it.
TEST_F(TensorBoard, ShowsEveryStepOnceAfterAKillAndAResume) {
  // Saves in the foreground, so that the validation is the last record.
  ExpectExit(fixture->Run({.run = "killed",
                           .set = {"eval.every=4", "ckpt.background=false"},
                           .env = {{"HL_FAULT", "train.step:kill:13"}}}),
             137);
  const Series before = Metrics("killed");
  ASSERT_EQ(before.at("loss").rbegin()->first, 12);
  ExpectShown(Read("killed"), before);  // kill -9 has lost nothing.

  const fs::path events = fixture->path("killed") / "events";
  const fs::path first = fs::directory_iterator(events)->path();
  const fs::path uncut = fixture->path("uncut");
  fs::copy_file(first, uncut);
  // Imitates a write that the kill cut short: readers stop there, and the next attempt truncates
  // the file.
  ASSERT_EQ(before.at("val_loss").rbegin()->first, 12);  // The last record.
  fs::resize_file(first, fs::file_size(first) - 5);
  for (const std::string reader : {"python", "server"}) {
    EXPECT_EQ(Read("killed")[reader]["."]["scalars"]["val/loss"].back()[0], 8) << reader;
  }

  ExpectExit(fixture->Run({.run = "killed", .set = {"eval.every=7"}}), 0);
  const Series after = Metrics("killed");
  ASSERT_FALSE(after.at("val_loss").contains(12));
  ASSERT_EQ(after.at("loss").size(), 20u);
  ExpectShown(Read("killed"), after);

  // If TensorBoard has read the first file before it was truncated, the START of the new file makes
  // it forget the old points.
  fs::copy_file(uncut, first, fs::copy_options::overwrite_existing);
  const auto python = Read("killed")["python"]["."]["scalars"];
  EXPECT_EQ(python["train/loss"].size(), 20u);
  EXPECT_EQ(python["val/loss"].size(), after.at("val_loss").size()) << python["val/loss"].dump();
}

TEST_F(TensorBoard, ALostEventIsSaidAndTrainingGoesOn) {
  ExpectExit(
      fixture->Run({.run = "lost",
                    .set = {"train.steps=8"},
                    .env = {{"HL_FAULT", "train.events:enospc:8"}}}),
      0, {"TensorBoard events of step 3 are lost, training goes on", "No space left on device"});
  Series expected = Metrics("lost");
  ASSERT_EQ(expected.at("loss").size(), 8u);
  for (auto& [metric, points] : expected) points.erase(3);
  ExpectShown(Read("lost"), expected);
}

TEST_F(TensorBoard, CanBeTurnedOff) {
  ExpectExit(fixture->Run({.run = "off", .set = {"train.steps=2", "log.tensorboard=false"}}), 0);
  EXPECT_FALSE(fs::exists(fixture->path("off") / "events"));
}

}  // namespace
}  // namespace halflife::test
