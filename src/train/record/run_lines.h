// A file of JSON lines that a run writes beside its training, and outlives: a disk that takes no
// more, for a while or for good, costs lines, but neither the run nor the wholeness of those there.
//
//   RunLines metrics(run / "metrics.jsonl");
//   metrics.Append({{"step", 3}, {"loss", 2.5}});
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "core/jsonl.h"

namespace halflife::train {

class RunLines {
 public:
  // Error kEnvironment where the file cannot be opened: a run does not begin without it.
  explicit RunLines(const std::filesystem::path& path);
  // Whether the run goes on without the line is the save policy's affair, so this does: it warns of
  // the first line that is lost, and says so when the file takes lines again.
  void Append(const nlohmann::ordered_json& line);

 private:
  void CutBack() const;

  const std::filesystem::path path_;
  JsonlWriter file_;
  // Where the last whole line ends, while a line is being written and after one that failed.
  std::optional<uintmax_t> whole_;
  int64_t num_lost_ = 0;  // in a row
};

}  // namespace halflife::train
