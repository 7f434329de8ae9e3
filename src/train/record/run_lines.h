// A file of JSON lines that does not affect training. If the disk is full, temporarily or
// permanently, lines are lost, but the run continues and existing lines remain complete.
//
//   RunLines metrics(run / "metrics.jsonl");
//   metrics.Append({{"step", 3}, {"loss", 2.5}});
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "core/json_text.h"

namespace halflife::train {

class RunLines {
 public:
  // Error kEnvironment if the file cannot be opened. A run does not start without it.
  explicit RunLines(const std::filesystem::path& path);
  // Does not throw, because the save policy decides whether a run continues. Warns of the first
  // lost line, and logs when lines can be written again.
  void Append(const nlohmann::ordered_json& line);

 private:
  void CutBack() const;

  const std::filesystem::path path_;
  JsonlWriter file_;
  // End of the last complete line, while a line is being written and after a failed write.
  std::optional<uintmax_t> whole_;
  int64_t num_lost_ = 0;  // Consecutive lost lines.
};

}  // namespace halflife::train
