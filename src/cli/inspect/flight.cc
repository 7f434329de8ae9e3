// The flight records of a run's ranks: which rank is late, in which operation, and what it is
// doing.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/inspect/artifact.h"
#include "core/clock.h"
#include "core/error.h"
#include "dist/flight_report.h"

namespace halflife::cli::inspect {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using dist::FlightFinding;
using dist::FlightOperation;
using dist::FlightRecord;

const char* Name(FlightFinding::Kind kind) {
  constexpr const char* kNames[] = {"failed", "process", "diverged", "missing"};
  return kNames[static_cast<int>(kind)];
}

double SecondsSince(int64_t then_us, int64_t now_us) {
  return 1e-6 * static_cast<double>(std::max<int64_t>(0, now_us - then_us));
}

std::string Summary(const FlightOperation& operation) {
  return Concat(operation.group, " #", operation.seq, " ", dist::Describe(operation), ", ",
                Name(operation.state));
}

Json RankJson(const FlightRecord& record, int64_t now_us) {
  // A running rank has been in its phase until now, an ended rank until its end.
  const bool ended = record.failed_us != 0 || record.process == dist::ProcessState::kGone;
  const int64_t until_us = ended ? std::max(record.alive_us, record.failed_us) : now_us;
  return {{"rank", record.rank},
          {"host", record.host},
          {"pid", record.pid},
          {"process", dist::Name(record.process)},
          {"silent_s", SecondsSince(record.alive_us, now_us)},
          {"phase", record.phase},
          {"step", record.step},
          {"phase_s", SecondsSince(record.phase_since_us, until_us)},
          {"operations", record.num_operations},
          {"last", record.operations.empty() ? "" : Summary(record.operations.back())}};
}

Json OperationJson(const FlightRecord& record, const FlightOperation& operation) {
  const bool ended = operation.ended_us != 0;
  return {{"rank", record.rank},
          {"number", operation.number},
          {"group", operation.group},
          {"seq", operation.seq},
          {"kind", operation.kind},
          {"what", operation.what},
          {"index", operation.index},
          {"bytes", operation.bytes},
          {"state", Name(operation.state)},
          {"issued_unix_us", operation.issued_us},
          {"ended_unix_us", ended ? Json(operation.ended_us) : Json()}};
}

}  // namespace

bool IsFlight(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return false;
  const fs::directory_iterator files(path, ignored);
  return std::any_of(begin(files), end(files), [](const fs::directory_entry& file) {
    return file.path().extension() == ".flight";
  });
}

Json DescribeFlight(const fs::path& path) {
  const std::vector<FlightRecord> records = dist::ReadFlight(path);
  const int64_t now_us = UnixMicroseconds();
  Json json = {{"attempt", records.at(0).attempt}, {"world_size", records[0].world_size}};
  json["findings"] = Json::array();
  for (const FlightFinding& finding : dist::FlightFindings(records, now_us))
    json["findings"].push_back({{"kind", Name(finding.kind)}, {"text", finding.text}});
  json["ranks"] = Json::array();
  json["operations"] = Json::array();
  for (const FlightRecord& record : records) {
    json["ranks"].push_back(RankJson(record, now_us));
    for (const FlightOperation& operation : record.operations)
      json["operations"].push_back(OperationJson(record, operation));
  }
  return json;
}

// Omits the operations, of which there are up to a thousand per rank.
std::string FlightText(const fs::path& path) {
  Json json = Describe(path);
  json.erase("operations");
  return Render(json);
}

}  // namespace halflife::cli::inspect
