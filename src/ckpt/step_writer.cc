#include "ckpt/step_writer.h"

#include "ckpt/step_dir.h"
#include "core/error.h"
#include "core/files.h"

namespace halflife::ckpt {

namespace fs = std::filesystem;

void WriteStep(const fs::path& out, Manifest manifest, int num_shards,
               const std::function<ShardPlan(int rank)>& plan) {
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kUsage, !fs::exists(fs::symlink_status(NamedFolder(out), ignored)),
              out.string(), " exists already. Use a new folder.");
  manifest.attempt = RandomHex(8);
  manifest.state.mesh = {.world = num_shards, .dp = num_shards};
  const fs::path temporary = TemporaryBeside(out, manifest.attempt);
  std::error_code error;
  fs::create_directories(temporary, error);
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot create ", temporary.string(), ": ",
              error.message());
  try {
    for (int rank = 0; rank < num_shards; ++rank) {
      MergePart(
          WriteShard(temporary, plan(rank),
                     {.step = manifest.state.step, .rank = rank, .attempt = manifest.attempt}),
          &manifest);
    }
    CheckCoverage(manifest, "the new step");
    WriteManifestFiles(manifest, temporary);
    PublishDirectory(temporary, out, ExitCode::kCheckpointIo);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
}

}  // namespace halflife::ckpt
