// A file of JSON lines. Each line is appended with one write(2): readers never see half a line of a
// running job, and after a crash at most the last line is missing or torn.
//
//   JsonlWriter metrics(run / "metrics.jsonl", ExitCode::kEnvironment);
//   metrics.Append({{"step", 3}, {"loss", 2.5}});
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "core/files.h"

namespace halflife {

class JsonlWriter {
 public:
  // Creates the file or appends to it. If a writer crashed within the last line, that line is first
  // ended with a newline.
  JsonlWriter(const std::filesystem::path& path, ExitCode code);
  // NaN and infinities are written as null, because JSON cannot represent them.
  void Append(const nlohmann::ordered_json& line);

 private:
  std::filesystem::path path_;
  ExitCode code_;
  Fd fd_;
};

}  // namespace halflife
