// The recipes for several GPUs fit the hardware that their headers name.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "core/concat.h"
#include "support/paths.h"
#include "train/config/plan.h"
#include "train/plan/cluster.h"
#include "train/plan/memory_plan.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;

struct Hardware {
  int nodes = 0;
  double gpu_gb = 0;
};

// Reads "#   hardware     2, 4 or 8 nodes of 8 GPUs of 80 GB", whose first number is the smallest.
std::optional<Hardware> HardwareOf(const fs::path& recipe) {
  static const std::regex kLine(R"(#\s+hardware\s+(\d+)[^G]* nodes? of 8 GPUs of (\d+) GB.*)");
  std::ifstream file(recipe);
  std::smatch match;
  for (std::string line; std::getline(file, line);)
    if (std::regex_match(line, match, kLine))
      return Hardware{.nodes = std::stoi(match[1]), .gpu_gb = std::stod(match[2])};
  return std::nullopt;
}

TEST(RecipesMemory, TakesAtMost85PercentOfTheNamedGpus) {
  int num_recipes = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(test::kSourceDir) / "launch/recipes")) {
    const std::optional<Hardware> hardware = HardwareOf(entry.path());
    if (!hardware) continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++num_recipes;
    const PlanRequest request = ParsePlan(Concat("nodes=", hardware->nodes, ",gpus=8"));
    RunConfig config = ConfigFor(LoadRunConfig(entry.path(), {}), request);
    const int world_size = request.cluster.world_size();
    CompleteForPlan(config, nullptr, world_size);
    EXPECT_GE(config.parallel.zero_stage, 1) << "which costs nothing on several GPUs";
    const model::LanguageModel model(config.model);
    const MemoryPlan plan = PlanMemory(config, model, world_size, request.cluster.limits);
    EXPECT_LE(plan.total(), 0.85 * 1e9 * hardware->gpu_gb);
  }
  EXPECT_GE(num_recipes, 14);
}

}  // namespace
}  // namespace halflife::train
