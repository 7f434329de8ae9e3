// The findings of `halflife doctor`, one line each: a verdict, the thing that was checked, the
// result, and the command that fixes it. launch/setup --check prints the same form
// (launch/common.sh).
//
//   OK    HDF5             1.10.8, /usr/lib/x86_64-linux-gnu/libhdf5_serial.so.103.3.0
//   WARN  memlock          8.0 MiB, and InfiniBand registers memory
//         fix: ulimit -l unlimited
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace halflife::cli::doctor {

enum class Verdict { kOk, kWarn, kFail };
const char* Name(Verdict verdict);  // "OK", "WARN", "FAIL"

struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string name;         // "HDF5", "memlock"
  std::string text;         // The result, with units.
  std::string remedy = {};  // Empty: no fix is needed.
  // The measurements in the text, for example "mb_per_s".
  std::map<std::string, double> values = {};
};

struct Group {
  std::string title;
  std::vector<Finding> findings;
};

struct Report {
  std::string version, git_hash, host;
  int world_size = 1;
  std::vector<Group> groups;

  int Count(Verdict verdict) const;
};

std::string ReportText(const Report& report);
// Keys: halflife, git_hash, host, world_size, num_ok, num_warn, num_fail, findings: a list of
// {group, name, verdict, text, remedy, values}.
nlohmann::ordered_json ReportJson(const Report& report);

}  // namespace halflife::cli::doctor
