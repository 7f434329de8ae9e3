#include "interop/hf_model.h"

#include "ckpt/step_dir.h"
#include "ckpt/step_writer.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "core/versions.h"
#include "interop/hf_tokenizer.h"
#include "model/language_model.h"

namespace halflife::interop {
namespace {

namespace fs = std::filesystem;

ckpt::StepState StepZero(const HfModel& model, const std::string& run_config_text) {
  ckpt::StepState state;
  state.run_id = RandomHex(16);
  state.run_config_text = run_config_text;
  state.model_family = model.config().mixer.name();
  state.model_config_json = model::ToJson(model::Resolved(model.config()));
  state.data.seq_len = static_cast<uint32_t>(model.max_positions());
  const BuildInfo build = GetBuildInfo();
  state.versions.halflife = build.version;
  state.versions.git_hash = build.git_hash;
  state.versions.git_dirty = build.git_dirty;
  return state;
}

void WriteWeights(const HfModel& model, ckpt::StepState state, const fs::path& ckpt_dir) {
  const dist::ParameterLayout layout(model::LanguageModel(model.config()).parameters().specs(),
                                     {.num_slices = 1});
  ckpt::Manifest manifest{.state = std::move(state),
                          .attempt = {},
                          .unix_ms = UnixMilliseconds(),
                          .hosts = {},
                          .files = {},
                          .tensors = ckpt::TensorEntries(layout)};
  ckpt::WriteStep(
      ckpt_dir / ckpt::StepName(0), std::move(manifest), /*num_shards=*/1, [&](int rank) {
        ckpt::ShardPlan plan = ckpt::PlanShard(layout, {ckpt::Kind::kMain}, rank);
        plan.fill = [&model](const ckpt::ShardPiece& piece, int64_t begin, int64_t end,
                             float* out) { model.ReadRange(piece.tensor, begin, end, out); };
        return plan;
      });
}

}  // namespace

ImportReport ImportModel(const HfModel& model, const std::string& run_config_text,
                         const fs::path& run) {
  std::error_code error;
  HL_CHECK_AS(ExitCode::kUsage, !fs::exists(fs::symlink_status(NamedFolder(run), error)),
              run.string(), " exists already. Choose another folder with --out.");
  const std::unique_ptr<data::Tokenizer> tokenizer = LoadHfTokenizer(model.folder().path());
  HL_CHECK_AS(ExitCode::kData,
              tokenizer == nullptr || tokenizer->vocab_size() <= model.config().vocab_size,
              "the tokenizer of ", model.where(), " has ",
              tokenizer == nullptr ? 0 : tokenizer->vocab_size(), " ids, but the model has only ",
              model.config().vocab_size, ". Replace the tokenizer files of the folder, ",
              "or remove them.");
  const fs::path temporary = TemporaryBeside(run, RandomHex(8));
  fs::create_directories(temporary / "ckpt", error);
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot create ", temporary.string(), ": ",
              error.message());
  try {
    WriteWeights(model, StepZero(model, run_config_text), temporary / "ckpt");
    AtomicWriteFile(temporary / "config.textproto", run_config_text, ExitCode::kCheckpointIo);
    if (tokenizer != nullptr) {
      fs::create_directories(temporary / "tokenizer");
      tokenizer->Save(temporary / "tokenizer");
    }
    PublishDirectory(temporary, run, ExitCode::kCheckpointIo);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  int64_t count = 0;
  for (const ckpt::WeightInfo& weight : model.weights()) count += weight.count();
  return {.num_parameters = count, .has_tokenizer = tokenizer != nullptr};
}

}  // namespace halflife::interop
