#include "ckpt/step_writer.h"

#include <algorithm>
#include <utility>

#include "ckpt/merged_weights.h"
#include "ckpt/step_dir.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"

namespace halflife::ckpt {
namespace {

namespace fs = std::filesystem;

dist::ParameterLayout LayoutOf(const Manifest& manifest, int world_size) {
  for (const ArrayEntry& array : manifest.arrays)
    HL_CHECK_AS(ExitCode::kUsage, array.dtype == StoredDType::kF32, "array ", array.name,
                " is stored as ", Name(array.dtype), ". Only fp32 arrays can be rewritten.");
  std::vector<dist::ParamSpec> specs;
  for (const TensorEntry& tensor : manifest.tensors) {
    specs.push_back({.name = tensor.name,
                     .shape = tensor.shape,
                     .region = tensor.fp32_region ? dist::Region::kFp32 : dist::Region::kCompute,
                     .weight_decay = tensor.weight_decay,
                     .aliases = tensor.aliases});
  }
  return dist::ParameterLayout(std::move(specs), {.num_slices = world_size});
}

ShardPlan PlanFromReader(const StepReader& step, const dist::ParameterLayout& layout, int rank) {
  ShardPlan plan = PlanShard(layout, step.manifest().array_names(), rank);
  plan.fill = [&step](const ShardPiece& piece, int64_t begin, int64_t end, float* out) {
    step.ReadRange(piece.array, piece.tensor, begin, end, out);
  };
  return plan;
}

}  // namespace

void WriteStep(const fs::path& out, Manifest manifest, const dist::ParameterLayout& layout,
               const std::function<ShardPlan(int rank)>& plan) {
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kUsage, !fs::exists(fs::symlink_status(NamedFolder(out), ignored)),
              out.string(), " exists already. Use a new folder.");
  const int num_shards = layout.num_slices();
  manifest.attempt = RandomHex(8);
  manifest.state.mesh = {.world = num_shards, .dp = num_shards};
  const fs::path temporary = TemporaryPathFor(out, manifest.attempt);
  std::error_code error;
  fs::create_directories(temporary, error);
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot create ", temporary.string(), ": ",
              error.message());
  try {
    std::vector<FileEntry> files;
    for (int rank = 0; rank < num_shards; ++rank) {
      const Manifest part =
          WriteShard(temporary, plan(rank),
                     {.step = manifest.state.step, .rank = rank, .attempt = manifest.attempt});
      files.push_back(part.files[0]);
    }
    SetFiles(std::move(files), layout, &manifest);
    CheckCoverage(manifest, "the new step");
    WriteManifestFiles(manifest, temporary);
    PublishDirectory(temporary, out, ExitCode::kCheckpointIo);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
}

void WriteMainWeights(const fs::path& out, StepState state,
                      const std::vector<dist::ParamSpec>& specs,
                      const std::function<void(const std::string& tensor, int64_t begin,
                                               int64_t end, float* out)>& read) {
  const dist::ParameterLayout layout(specs, {.num_slices = 1});
  Manifest manifest{.state = std::move(state),
                    .attempt = {},
                    .unix_ms = UnixMilliseconds(),
                    .hosts = {},
                    .files = {},
                    .arrays = ArrayEntries(layout, {kMainArray}),
                    .tensors = TensorEntries(layout)};
  WriteStep(out, std::move(manifest), layout, [&](int rank) {
    ShardPlan plan = PlanShard(layout, {kMainArray}, rank);
    plan.fill = [&read](const ShardPiece& piece, int64_t begin, int64_t end, float* values) {
      read(piece.tensor, begin, end, values);
    };
    return plan;
  });
}

void ReshardStep(const StepReader& step, int world_size, const fs::path& out) {
  HL_CHECK_AS(ExitCode::kUsage, world_size >= 1, "world size ", world_size, " must be at least 1");
  const Manifest& from = step.manifest();
  const auto named = ParseStepName(NamedFolder(out));
  HL_CHECK_AS(ExitCode::kUsage, !named || named->step == from.state.step, out.string(),
              " is the name of step ", named->step, ", but this is step ", from.state.step,
              ". Use ", StepName(from.state.step), ", or a name that is not a step's.");
  const dist::ParameterLayout layout = LayoutOf(from, world_size);
  Manifest manifest{.state = from.state,
                    .attempt = {},
                    .unix_ms = from.unix_ms,
                    .hosts = from.hosts,
                    .files = {},
                    .arrays = from.arrays,
                    .tensors = TensorEntries(layout)};
  for (TensorEntry& tensor : manifest.tensors) tensor.frozen = from.Find(tensor.name)->frozen;
  WriteStep(out, std::move(manifest), layout,
            [&](int rank) { return PlanFromReader(step, layout, rank); });
}

void AverageSteps(const std::vector<StepReader>& steps, const fs::path& out) {
  const Manifest& last = steps.back().manifest();
  for (const StepReader& step : steps) {
    HL_CHECK_AS(ExitCode::kUsage, !IsLoraStep(step), step.path().string(),
                " is a step of a run with LoRA, whose A and B have no mean. Average steps of a run "
                "that trains all weights.");
    bool same = step.manifest().tensors.size() == last.tensors.size();
    for (const TensorEntry& tensor : last.tensors) {
      const TensorEntry* const other = step.manifest().Find(tensor.name);
      same = same && other != nullptr && other->shape == tensor.shape;
    }
    HL_CHECK_AS(ExitCode::kUsage, same, step.path().string(), " and ", steps.back().path().string(),
                " have other tensors, so they have no mean. Use steps of the same model.");
  }
  const dist::ParameterLayout layout = LayoutOf(last, 1);
  Manifest manifest{.state = last.state,
                    .attempt = {},
                    .unix_ms = last.unix_ms,
                    .hosts = last.hosts,
                    .files = {},
                    .arrays = ArrayEntries(layout, {kMainArray}),
                    .tensors = TensorEntries(layout)};
  manifest.state.optimizer.clear();
  manifest.state.num_updates = 0;
  manifest.state.metrics.clear();  // They are of the last step's weights.
  WriteStep(out, std::move(manifest), layout, [&](int rank) {
    ShardPlan plan = PlanShard(layout, {kMainArray}, rank);
    plan.fill = [&steps](const ShardPiece& piece, int64_t begin, int64_t end, float* mean) {
      std::vector<float> values(static_cast<size_t>(end - begin));
      std::vector<double> sums(values.size(), 0);
      for (const StepReader& step : steps) {
        step.ReadRange(kMainArray, piece.tensor, begin, end, values.data());
        for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
      }
      for (size_t i = 0; i < sums.size(); ++i)
        mean[i] = static_cast<float>(sums[i] / static_cast<double>(steps.size()));
    };
    return plan;
  });
}

Hash128 GatheredHash(const StepReader& step) {
  StreamHash hash;
  std::vector<float> values;
  constexpr int64_t kChunk = kBlockBytes / sizeof(float);
  for (const TensorEntry& tensor : step.manifest().tensors) {
    for (const ArrayEntry& array : step.manifest().arrays) {
      if (!tensor.has(array.name)) continue;
      const std::string label = Concat(array.name, "/", tensor.name);
      hash.Update(label.c_str(), label.size() + 1);
      for (int64_t begin = 0; begin < tensor.count(); begin += kChunk) {
        const int64_t end = std::min(begin + kChunk, tensor.count());
        values.resize(static_cast<size_t>(end - begin));
        step.ReadRange(array.name, tensor.name, begin, end, values.data());
        hash.Update(values.data(), values.size() * sizeof(float));
      }
    }
  }
  return hash.Digest();
}

}  // namespace halflife::ckpt
