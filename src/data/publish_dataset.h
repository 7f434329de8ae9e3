// The frame of every way to make a dataset: the folder appears when it is whole, or not at all.
//
//   // Run(config) finds what the dataset is made of.
//   // run.WriteFiles(folder): all but the manifest, which it returns without its hash.
//   // run.Summarise(manifest): what became of it, but for `seconds`.
//   return PublishDataset<Run>(config);
#pragma once

#include <filesystem>

#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "data/manifest.h"
#include "data/output_folder.h"

namespace halflife::data {

// `config.output` is a PrepareOutput that was checked.
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
  // A folder that cannot be made or listed, such as on a full disk.
  HL_FAIL(ExitCode::kData, "prepare cannot go on with ", config.output.out.string(), ": ",
          TextOf(error));
}

}  // namespace halflife::data
