// A file of JSON lines, appended one whole line per write(2): readers never see half a line of a
// live run, and after a crash at most the last line is missing or torn.
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
  // Creates or appends. A torn last line of a crashed writer is ended with a newline first.
  JsonlWriter(const std::filesystem::path& path, ExitCode code);
  // NaN and infinities are written as null (JSON has no other word for them).
  void Append(const nlohmann::ordered_json& line);

 private:
  std::filesystem::path path_;
  ExitCode code_;
  Fd fd_;
};

}  // namespace halflife
