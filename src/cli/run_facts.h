// What a report takes from a run's recipe and its newest checkpoint: the formats that the report,
// which stands on core alone, does not read.
#pragma once

#include <filesystem>

#include "report/run_record.h"

namespace halflife::cli {

// Fills in what `run.config_text` says about the run, or `config_problem`, and what the newest
// checkpoint's manifest says; a run without a checkpoint, or with a damaged one, is still worth a
// report.
void AddRunFacts(report::RunRecord& run);
// ReadRun with them.
report::RunRecord ReadRunWithFacts(const std::filesystem::path& path);

}  // namespace halflife::cli
