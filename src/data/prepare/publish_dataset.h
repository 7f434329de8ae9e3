// The common frame of all ways to make a dataset. The folder appears complete or not at all.
//
//   // Run(config) finds the inputs of the dataset.
//   // run.WriteFiles(folder) writes everything except the manifest and returns that without hash.
//   // run.Summarise(manifest) describes the result, except `seconds`.
//   return PublishDataset<Run>(config);
#pragma once

#include <filesystem>

#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "data/manifest.h"
#include "data/prepare/output_folder.h"

namespace halflife::data {

// `config.output` must be a PrepareOutput that was already checked.
template <typename Run, typename Config>
auto PublishDataset(const Config& config) try {
  const Stopwatch clock;
  Run run(config);
  OutputFolder folder(config.output.out);
  Manifest manifest = run.WriteFiles(folder.path());
  manifest.hash = WriteManifest(manifest, folder.path());
  folder.Publish();
  auto summary = run.Summarise(manifest);
  summary.seconds = clock.Seconds();
  return summary;
} catch (const std::filesystem::filesystem_error& error) {
  // A folder could not be created or listed, for example on a full disk.
  HL_FAIL(ExitCode::kData, "prepare cannot continue with ", config.output.out.string(), ": ",
          TextOf(error));
}

}  // namespace halflife::data
