// The base of tests of whole training runs on rank threads. A suite shares the small datasets of
// step_data.h.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/reader.h"
#include "ckpt/step_dir.h"
#include "core/concat.h"
#include "dist/local_communicator.h"
#include "dist/rank_context.h"
#include "support/temp_dir.h"
#include "train/loop/trainer.h"
#include "train/step/step_data.h"

namespace halflife::train {

// Trains in `folder` on `ranks` threads. `log` becomes what was logged, also if training throws.
inline ExitCode TrainOnThreads(const RunConfig& config, const std::filesystem::path& folder,
                               int ranks, const TrainOptions& options, std::string& log,
                               const dist::LocalOptions& world = {.timeout_s = 60}) {
  std::atomic<ExitCode> code = ExitCode::kInternal;
  const auto body = [&](dist::Communicator& comm) {
    at::set_num_threads(1);
    const auto context = dist::MakeLocalRankContext(comm);
    Validate(config, context->world_size());
    Trainer trainer(config, {}, RunFolder::Open(folder, *context, {}), *context, options);
    code = trainer.Run();
  };
  testing::internal::CaptureStderr();
  try {
    dist::LocalWorld::Run(ranks, body, world);
  } catch (...) {
    log = testing::internal::GetCapturedStderr();
    throw;
  }
  log = testing::internal::GetCapturedStderr();
  return code;
}

class TrainingRuns : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    data_dir = std::make_unique<test::TempDir>();
    test::PrepareStepData(data_dir->path());
  }
  static void TearDownTestSuite() { data_dir.reset(); }

  explicit TrainingRuns(std::string recipe) : recipe_(std::move(recipe)) {}

  struct Run {
    int ranks = 1;
    std::vector<std::string> set = {};
    std::string data = "data";  // a dataset of data_dir; empty: the settings name one
    std::string resume = "auto";
    std::vector<std::string> allow_change = {};
    uint64_t skip_data = 0;
    dist::LocalOptions world = {.timeout_s = 60};
    std::filesystem::path folder = "run";  // relative to the folder of the test
    std::function<std::string(const model::LanguageModel&)> sample_text = nullptr;
  };
  // Trains, and records the exit code and the log.
  ExitCode Train(const Run& run) {
    std::vector<std::string> set = run.set;
    if (!run.data.empty())
      set.push_back(Concat("data.path=", (data_dir->path() / run.data).string()));
    return TrainOnThreads(ParseRunConfig(recipe_, "test", set), dir_.path() / run.folder, run.ranks,
                          {.resume = ckpt::ParseResume(run.resume),
                           .allow_change = run.allow_change,
                           .skip_data = run.skip_data,
                           .sample_text = run.sample_text},
                          log_, run.world);
  }
  // Opens a step of the run's checkpoint folder.
  ckpt::StepReader Open(uint64_t step) const {
    return ckpt::StepReader::Open(folder_ / "ckpt" / ckpt::StepName(step));
  }

  static inline std::unique_ptr<test::TempDir> data_dir;
  const std::string recipe_;
  const test::TempDir dir_;
  const std::filesystem::path folder_ = dir_ / "run";
  std::string log_;
};

}  // namespace halflife::train
