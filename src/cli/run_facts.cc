#include "cli/run_facts.h"

#include "ckpt/reader.h"
#include "core/error.h"
#include "train/config/run_config.h"

namespace halflife::cli {
namespace {

void AddConfig(report::RunRecord& run) {
  if (run.config_text.empty()) return;  // ReadRun has reported it.
  try {
    const train::RunConfig config = train::ParseRunConfig(run.config_text, "config.textproto", {});
    run.config = train::FlatFields(config);
    run.model = Concat(model::MixerSummary(config.model), ", ", config.model.num_layers, " x ",
                       config.model.model_dim);
    run.total_steps = config.train.steps;
    run.tokens_per_step = config.train.global_batch * config.data.seq_len;
    run.clip_norm = config.optimizer.clip_norm;
    run.num_parameters = model::LanguageModel(config.model).CountParameters().total();
  } catch (const Error& error) {
    run.config_problem = error.message();
  }
}

void AddCheckpoint(report::RunRecord& run) {
  try {
    const ckpt::StepReader step = ckpt::StepReader::Open(ckpt::FindStep(run.path));
    run.world_size = step.state().mesh.world;
    run.build = step.state().versions.git_hash;
    if (step.state().versions.git_dirty) run.build += " (modified)";
  } catch (const Error&) {
  }
}

}  // namespace

void AddRunFacts(report::RunRecord& run) {
  AddConfig(run);
  AddCheckpoint(run);
}

report::RunRecord ReadRunWithFacts(const std::filesystem::path& path) {
  report::RunRecord run = report::ReadRun(path);
  AddRunFacts(run);
  return run;
}

}  // namespace halflife::cli
