// Facts for a report from a run's recipe and its newest checkpoint. The report area depends only on
// core and does not read these formats.
#pragma once

#include <filesystem>

#include "report/run_record.h"

namespace halflife::cli {

// Fills in the facts of `run.config_text`, or `config_problem`, and those of the newest
// checkpoint's manifest. A run without a checkpoint, or with a damaged one, can still be reported.
void AddRunFacts(report::RunRecord& run);
// Calls ReadRun and AddRunFacts.
report::RunRecord ReadRunWithFacts(const std::filesystem::path& path);

}  // namespace halflife::cli
