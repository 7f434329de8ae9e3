#include <nlohmann/json.hpp>

#include "ckpt/step_dir.h"
#include "cli/inspect/artifact.h"

namespace halflife::cli::inspect {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool IsRun(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path / "ckpt", ignored) || fs::exists(path / "config.textproto", ignored);
}

Json DescribeRun(const fs::path& path) {
  std::error_code ignored;
  const fs::path metrics = path / "metrics.jsonl";
  Json described =
      fs::is_regular_file(metrics, ignored) ? DescribeMetrics(metrics) : Json::object();
  const std::vector<ckpt::StepDir> steps = ckpt::ListPublished(path / "ckpt");
  Json run = {{"finished", fs::exists(path / "DONE", ignored)},
              {"last_step", described.value("last_step", Json())},
              {"last_validation", described.value("last_validation", Json())},
              {"checkpoints", steps.size()}};
  if (!steps.empty()) {
    run["checkpoint"] = {{"path", steps.front().path.string()}};
    run["checkpoint"].update(DescribeCheckpoint(steps.front().path));
  }
  return run;
}

}  // namespace halflife::cli::inspect
