// halflife inspect: says what a path is and what is in it: a dataset, a run, a checkpoint step or a
// recipe.
#include <CLI/CLI.hpp>

#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ckpt/reader.h"
#include "cli/command.h"
#include "cli/inspect_dataset.h"
#include "core/error.h"
#include "core/human.h"
#include "data/dataset.h"
#include "train/plan.h"

namespace halflife::cli {
namespace fs = std::filesystem;
namespace {

struct Options {
  std::string path;
  bool json = false;
};

bool IsStep(const fs::path& path) {
  const std::string name = path.filename().string();  // not step_N.bad or step_N.superseded
  return fs::exists(path / "manifest.pb") && name.starts_with("step_") &&
         name.find_first_not_of("0123456789", 5) == std::string::npos;
}
bool IsRun(const fs::path& path) {
  return fs::is_directory(path / "ckpt") || fs::exists(path / "config.textproto");
}

nlohmann::ordered_json DescribeStep(const fs::path& path) {
  const ckpt::StepReader reader = ckpt::StepReader::Open(path);
  const ckpt::StepState& state = reader.state();
  nlohmann::ordered_json metrics;
  for (const auto& [name, value] : state.metrics) metrics[name] = value;
  return {{"kind", "checkpoint"},
          {"path", path.string()},
          {"step", state.step},
          {"final", state.final},
          {"family", state.model_family},
          {"tensors", reader.tensors().size()},
          {"files", reader.files().size()},
          {"bytes", reader.total_bytes()},
          {"world_size", state.mesh.world},
          {"samples", state.data.samples},
          {"tokens", state.data.tokens},
          {"dataset", ToHex(state.data.dataset)},
          {"metrics", metrics},
          {"model", nlohmann::ordered_json::parse(state.model_config_json)}};
}

nlohmann::ordered_json LastLineWith(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  nlohmann::ordered_json last;
  for (std::string line; std::getline(in, line);) {
    auto json = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains(key)) last = std::move(json);
  }
  return last;
}

nlohmann::ordered_json DescribeRun(const fs::path& path) {
  nlohmann::ordered_json out = {
      {"kind", "run"},
      {"path", path.string()},
      {"finished", fs::exists(path / "DONE")},
      {"last_step", LastLineWith(path / "metrics.jsonl", "loss")},
      {"last_validation", LastLineWith(path / "metrics.jsonl", "val_loss")}};
  bool has_step = false;
  if (fs::is_directory(path / "ckpt")) {
    for (const auto& entry : fs::directory_iterator(path / "ckpt")) {
      has_step = has_step || IsStep(entry.path());
    }
  }
  if (has_step) out["checkpoint"] = DescribeStep(ckpt::FindStep(path));
  return out;
}

// key: value lines, nested objects indented
void PrintPlain(const nlohmann::ordered_json& object, int indent, std::ostream& out) {
  for (const auto& [key, value] : object.items()) {
    out << std::string(indent, ' ') << key << ":";
    if (value.is_object() && !value.empty()) {
      out << "\n";
      PrintPlain(value, indent + 2, out);
    } else if (key == "bytes") {
      out << " " << HumanBytes(value.get<uint64_t>()) << "\n";
    } else {
      out << " " << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
    }
  }
}

void PrintHeadline(const nlohmann::ordered_json& object, std::ostream& out) {
  const auto& step = object.contains("checkpoint") ? object["checkpoint"]["step"] : object["step"];
  out << object["kind"].get<std::string>();
  if (step.is_number()) out << ", step " << step;
  out << "\n";
}

ExitCode Run(const Options& options) {
  const fs::path path = options.path;
  HL_CHECK_AS(ExitCode::kUsage, fs::exists(path), path.string(), " does not exist");
  if (fs::is_regular_file(path) && path.extension() == ".textproto") {
    train::RunConfig config = train::LoadRunConfig(path, {});
    if (config.model.vocab_size == 0) {
      config.model.vocab_size = fs::exists(config.data.path)
                                    ? data::Dataset::Open(config.data.path).info().vocab_size
                                    : 259;
    }
    std::cout << train::PlanText(config, model::LanguageModel(config.model), 1);
    return ExitCode::kFinished;
  }
  HL_CHECK_AS(ExitCode::kUsage, fs::is_directory(path), path.string(),
              " is no dataset, run, checkpoint step or recipe (.textproto)");
  if (!IsRun(path) && !IsStep(path)) {
    PrintDataset(path, options.json, std::cout);
    return ExitCode::kFinished;
  }
  const nlohmann::ordered_json described = IsStep(path) ? DescribeStep(path) : DescribeRun(path);
  if (options.json) {
    std::cout << described.dump(2) << "\n";
  } else {
    PrintHeadline(described, std::cout);
    PrintPlain(described, 2, std::cout);
  }
  return ExitCode::kFinished;
}

}  // namespace

void AddInspect(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("inspect", "Say what a dataset, run, step or recipe holds");
  DescribeUse(*command, {.examples = {"halflife inspect runs/first"},
                         .exit_codes = {ExitCode::kData, ExitCode::kNoUsableCheckpoint}});
  command->add_option("PATH", options->path, "DATASET, RUN, RUN/ckpt/step_N or RECIPE.textproto")
      ->type_name("PATH")
      ->required();
  command->add_flag("--json", options->json, "As JSON");
  command->callback([=, &action] { action = [options] { return Run(*options); }; });
}

}  // namespace halflife::cli
