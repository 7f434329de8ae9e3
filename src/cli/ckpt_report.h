// The output of `halflife ckpt`: each result as JSON, and as a plain table made from the JSON.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ckpt/diff.h"
#include "ckpt/reader.h"
#include "ckpt/retention.h"

namespace halflife::cli {

// Returns a table with columns two spaces apart. The first row is the heading.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// One object per folder that looks like a step: name, state (ok, pinned, bad, superseded, tmp),
// latest, best (null, or the metric and value by which ckpt::FindBestStep chose it), age, bytes,
// mesh, ...
nlohmann::ordered_json DescribeRun(const std::filesystem::path& ckpt_dir);
std::string RunTable(const nlohmann::ordered_json& run);

// `pattern`: a glob over tensor names. `with_stats` reads every element of those tensors' main
// weights.
nlohmann::ordered_json DescribeStep(const ckpt::StepReader& step, const std::string& pattern,
                                    bool with_stats);
std::string StepText(const nlohmann::ordered_json& step);

nlohmann::ordered_json DescribeDifference(const ckpt::StepDifference& difference);
std::string DifferenceText(const nlohmann::ordered_json& difference);

nlohmann::ordered_json DescribeRetention(const std::vector<ckpt::RetentionChoice>& choices);

}  // namespace halflife::cli
