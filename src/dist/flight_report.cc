#include "dist/flight_report.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "core/host.h"
#include "core/human.h"
#include "core/log.h"
#include "dist/flight_recorder.h"

namespace halflife::dist {
namespace {

namespace fs = std::filesystem;
using flight::Image;

// In a healthy run, ranks can temporarily be this far apart.
constexpr int64_t kNoticeUs = 2'000'000;
constexpr uint32_t kMaxRanks = 1 << 20;

template <size_t kSize>
std::string TextOf(const char (&field)[kSize]) {
  return std::string(field, ::strnlen(field, kSize));
}

// Reads the third field of /proc/PID/stat, which follows the name in parentheses.
ProcessState StateOf(int64_t pid) {
  std::ifstream in(Concat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(in, line)) return ProcessState::kGone;
  const size_t name_end = line.rfind(')');
  const char state = name_end + 2 < line.size() ? line[name_end + 2] : '?';
  if (state == 'Z' || state == 'X') return ProcessState::kGone;
  return state == 'T' || state == 't' ? ProcessState::kStopped : ProcessState::kRuns;
}

FlightOperation Decode(const flight::Entry& entry) {
  constexpr auto kLastKind = static_cast<uint8_t>(OpKind::kAllToAllV);
  return {.number = entry.number,
          .group = TextOf(entry.group),
          .group_size = entry.group_size,
          .seq = entry.seq,
          .kind = entry.kind <= kLastKind ? Name(static_cast<OpKind>(entry.kind)) : "unknown",
          .what = TextOf(entry.what),
          .index = entry.index,
          .bytes = entry.bytes,
          .state = static_cast<OpState>(
              std::min<uint8_t>(entry.state, static_cast<uint8_t>(OpState::kFailed))),
          .on_device = entry.on_device != 0,
          .issued_us = entry.issued_us,
          .ended_us = entry.ended_us,
          .ready_us = entry.ready_us};
}

std::string Ago(int64_t since_us, int64_t now_us) {
  return HumanSeconds(static_cast<double>(std::max<int64_t>(0, now_us - since_us)) * 1e-6);
}

std::string Doing(const FlightRecord& record, int64_t now_us) {
  return Concat("in phase ", record.phase, " of step ", record.step, " for ",
                Ago(record.phase_since_us, now_us));
}

// --- operations that the ranks of a group have not all issued alike ---

// By rank: the latest operation of one group.
using Latest = std::map<int, const FlightOperation*>;

std::map<std::string, Latest> LatestByGroup(const std::vector<FlightRecord>& records) {
  std::map<std::string, Latest> groups;
  for (const FlightRecord& record : records) {
    for (const FlightOperation& operation : record.operations) {
      const FlightOperation*& latest = groups[operation.group][record.rank];
      if (latest == nullptr || operation.seq > latest->seq) latest = &operation;
    }
  }
  return groups;
}

const FlightOperation* Find(const FlightRecord& record, const std::string& group, int64_t seq) {
  for (const FlightOperation& operation : record.operations)
    if (operation.group == group && operation.seq == seq) return &operation;
  return nullptr;
}

struct Divergence {
  int64_t at_us = 0;
  int rank = 0;  // the rank that has not issued it, or has issued another operation
  // Ranks whose own operation is not done; includes those that failed at their deadline.
  std::vector<int> waiting;
  std::string text;
  bool waits = false;  // the rank is itself among those that wait for another
};

std::vector<int> RanksOf(const std::vector<const FlightRecord*>& records) {
  std::vector<int> ranks;
  for (const FlightRecord* record : records) ranks.push_back(record->rank);
  return ranks;
}

// Finds the first operation of `group` that one rank has issued and another has not, or has issued
// as a different operation. A rank that has issued none is known to be a member only if the group
// contains all ranks.
void AddDivergence(const std::string& group, const Latest& latest,
                   const std::vector<FlightRecord>& records, int64_t now_us,
                   std::vector<Divergence>* found) {
  const FlightOperation& any = *latest.begin()->second;
  const bool is_everybodys = any.group_size == records[0].world_size;
  // True if the ring of this record holds only operations of other groups. The rank's last
  // operation of this group is then unknown, but it is none of those that others wait in.
  const auto has_forgotten = [&](const FlightRecord& record) {
    return is_everybodys && !latest.contains(record.rank) &&
           record.num_operations > flight::kNumEntries;
  };
  const auto last_of = [&](const FlightRecord& record) -> int64_t {
    const auto own = latest.find(record.rank);
    return own == latest.end() ? -1 : own->second->seq;
  };
  int64_t least = any.seq, most = any.seq;
  for (const FlightRecord& record : records) {
    if (!is_everybodys && !latest.contains(record.rank)) continue;
    if (has_forgotten(record)) continue;
    least = std::min(least, last_of(record));
    most = std::max(most, last_of(record));
  }
  const int64_t seq = std::min(least + 1, most);
  const FlightOperation* first = nullptr;
  std::vector<const FlightRecord*> issued, late, otherwise;
  std::vector<int> waiting;
  for (const FlightRecord& record : records) {
    const FlightOperation* const own = Find(record, group, seq);
    if (own == nullptr) {
      if (has_forgotten(record) || (last_of(record) == least && (is_everybodys || least >= 0)))
        late.push_back(&record);
      continue;
    }
    if (first == nullptr) first = own;
    if (own->state != OpState::kDone) waiting.push_back(record.rank);
    (Describe(*own) == Describe(*first) ? issued : otherwise).push_back(&record);
  }
  if (first == nullptr) return;
  // A send can complete before its receiver issues the operation. No rank waits in that case.
  if (now_us - first->issued_us < kNoticeUs || waiting.empty()) late.clear();
  for (const FlightRecord* record : otherwise) {
    found->push_back({first->issued_us, record->rank, waiting,
                      Concat("rank ", record->rank, " has issued ", group, " #", seq, " as ",
                             Describe(*Find(*record, group, seq)), ", rank ",
                             JoinRanks(RanksOf(issued)), " as ", Describe(*first))});
  }
  for (const FlightRecord* record : late) {
    found->push_back(
        {first->issued_us, record->rank, waiting,
         Concat("rank ", record->rank, " has not issued ", group, " #", seq, " ", Describe(*first),
                " (it is ", Doing(*record, now_us), "); rank ", JoinRanks(RanksOf(issued)),
                " did, ", Ago(first->issued_us, now_us), " ago")});
  }
}

// Finds ranks whose GPU has not come to an operation for which the GPUs of other ranks wait.
void AddLateGpus(const std::string& group, const std::vector<FlightRecord>& records, int64_t now_us,
                 std::vector<Divergence>* found) {
  struct State {
    std::vector<int> ready;
    std::vector<std::pair<const FlightRecord*, const FlightOperation*>> late;
    int64_t ready_us = 0;  // of the first rank
  };
  std::map<int64_t, State> by_seq;
  for (const FlightRecord& record : records) {
    for (const FlightOperation& operation : record.operations) {
      if (operation.group != group || !operation.on_device) continue;
      if (operation.state == OpState::kDone) continue;
      State& state = by_seq[operation.seq];
      if (operation.ready_us == 0) {
        state.late.emplace_back(&record, &operation);
        continue;
      }
      state.ready.push_back(record.rank);
      if (state.ready_us == 0 || operation.ready_us < state.ready_us)
        state.ready_us = operation.ready_us;
    }
  }
  for (const auto& [seq, state] : by_seq) {
    if (state.ready.empty() || now_us - state.ready_us < kNoticeUs) continue;
    for (const auto& [record, operation] : state.late)
      found->push_back(
          {state.ready_us, record->rank, state.ready,
           Concat("rank ", record->rank, " has issued ", group, " #", seq, " ",
                  Describe(*operation), ", but its GPU has not come to it (it is ",
                  Doing(*record, now_us), "); the GPU of rank ", JoinRanks(state.ready),
                  " came to it ", Ago(state.ready_us, now_us), " ago")});
    if (!state.late.empty()) return;  // later operations are late because of this one
  }
}

std::vector<Divergence> Divergences(const std::vector<FlightRecord>& records, int64_t now_us) {
  std::vector<Divergence> found;
  for (const auto& [group, latest] : LatestByGroup(records))
    AddDivergence(group, latest, records, now_us, &found);
  for (const auto& [group, latest] : LatestByGroup(records))
    AddLateGpus(group, records, now_us, &found);
  for (Divergence& late : found)
    late.waits = std::ranges::any_of(found, [&](const Divergence& other) {
      return other.rank != late.rank && std::ranges::count(other.waiting, late.rank) > 0;
    });
  // A rank that itself waits for a late rank is listed after it.
  std::ranges::stable_sort(found, {},
                           [](const Divergence& x) { return std::pair(x.waits, x.at_us); });
  return found;
}

// --- processes ---

std::vector<const FlightRecord*> InOrder(const std::vector<FlightRecord>& records,
                                         int64_t FlightRecord::*time) {
  std::vector<const FlightRecord*> ordered;
  for (const FlightRecord& record : records) ordered.push_back(&record);
  std::ranges::stable_sort(ordered, {}, time);
  return ordered;
}

// Processes are reported in the order in which their signs of life ended. If all are gone, the
// first one is the likely cause.
void AddProcess(const FlightRecord& record, int64_t now_us, std::vector<FlightFinding>* findings) {
  constexpr int64_t kSilentUs = 30'000'000;  // far above the time between two signs of life
  const bool ended =
      record.process == ProcessState::kStopped || record.process == ProcessState::kGone;
  if (!ended && now_us - record.alive_us < kSilentUs) return;
  findings->push_back(
      {FlightFinding::Kind::kProcess,
       Concat("rank ", record.rank, " (pid ", record.pid, " on ", record.host, ") ",
              ended ? Concat("is ", Name(record.process), ", its last sign of life ")
                    : "has given its last sign of life ",
              HumanSeconds(1e-6 * static_cast<double>(now_us - record.alive_us)), " ago, ",
              Doing(record, record.alive_us)),
       record.rank});
}

}  // namespace

std::string Describe(const FlightOperation& operation) {
  return Concat(operation.kind, " '", operation.what, "' ", operation.index);
}

const char* Name(OpState state) {
  constexpr const char* kNames[] = {"issued", "done", "failed"};
  return kNames[static_cast<int>(state)];
}

const char* Name(ProcessState state) {
  constexpr const char* kNames[] = {"runs", "stopped", "gone", "unknown"};
  return kNames[static_cast<int>(state)];
}

std::string FlightRecordName(int rank) {
  const std::string digits = std::to_string(rank);
  return Concat("r", std::string(5 - std::min<size_t>(5, digits.size()), '0'), digits, ".flight");
}

FlightRecord ReadFlightRecord(const fs::path& path) {
  const std::string bytes = ReadFile(path, ExitCode::kData, sizeof(Image));
  HL_CHECK_AS(ExitCode::kData,
              bytes.size() == sizeof(Image) &&
                  std::memcmp(bytes.data(), flight::kMagic, sizeof(flight::kMagic)) == 0,
              path.string(), " is not a flight record");
  const auto image = std::make_unique<Image>();
  std::memcpy(static_cast<void*>(image.get()), bytes.data(), sizeof(Image));
  const flight::Header& header = image->header;
  HL_CHECK_AS(ExitCode::kData, header.version == flight::kVersion, path.string(), " has version ",
              header.version, ", but this program reads version ", flight::kVersion);
  HL_CHECK_AS(ExitCode::kData, header.rank < header.world_size && header.world_size <= kMaxRanks,
              path.string(), " is damaged: rank ", header.rank, " of ", header.world_size);
  FlightRecord record{.rank = static_cast<int>(header.rank),
                      .world_size = static_cast<int>(header.world_size),
                      .pid = header.pid,
                      .host = TextOf(header.host),
                      .attempt = TextOf(header.attempt),
                      .alive_us = header.alive_us,
                      .phase = TextOf(header.phase),
                      .phase_since_us = header.phase_since_us,
                      .step = header.step,
                      .cause = TextOf(header.cause),
                      .failed_us = header.failed_us,
                      .num_operations = header.num_operations};
  if (record.host == HostName()) record.process = StateOf(record.pid);
  for (const flight::Entry& entry : image->entries)
    if (entry.number != 0) record.operations.push_back(Decode(entry));
  std::ranges::sort(record.operations, {}, &FlightOperation::number);
  return record;
}

std::vector<FlightRecord> ReadFlight(const fs::path& folder) {
  std::vector<FlightRecord> records;
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, error))
    if (file.path().extension() == ".flight") records.push_back(ReadFlightRecord(file.path()));
  HL_CHECK_AS(ExitCode::kData, !error || error == std::errc::no_such_file_or_directory,
              "cannot read ", folder.string(), ": ", error.message());
  if (records.empty()) return records;
  const std::string attempt =
      std::ranges::max_element(records, {}, &FlightRecord::alive_us)->attempt;
  std::erase_if(records, [&](const FlightRecord& record) { return record.attempt != attempt; });
  std::ranges::sort(records, {}, &FlightRecord::rank);
  return records;
}

std::vector<FlightFinding> FlightFindings(const std::vector<FlightRecord>& records,
                                          int64_t now_us) {
  using enum FlightFinding::Kind;
  std::vector<FlightFinding> findings;
  for (const FlightRecord* record : InOrder(records, &FlightRecord::failed_us)) {
    if (record->failed_us == 0) continue;
    findings.push_back({kFailed,
                        Concat("rank ", record->rank, " failed ", Ago(record->failed_us, now_us),
                               " ago, ", Doing(*record, record->failed_us), ": ", record->cause),
                        record->rank});
  }
  for (const FlightRecord* record : InOrder(records, &FlightRecord::alive_us))
    if (record->failed_us == 0) AddProcess(*record, now_us, &findings);
  for (const Divergence& divergence : Divergences(records, now_us))
    findings.push_back({kDiverged, divergence.text, divergence.rank});
  std::vector<int> missing;
  for (int rank = 0; !records.empty() && rank < records[0].world_size; ++rank)
    if (!std::ranges::binary_search(records, rank, {}, &FlightRecord::rank))
      missing.push_back(rank);
  if (!missing.empty())
    findings.push_back({kMissing, Concat("no flight record of rank ", JoinRanks(missing))});
  return findings;
}

std::string WhoIsLate(const fs::path& folder) noexcept {
  constexpr size_t kMax = 4;
  try {
    std::string text;
    size_t count = 0;
    for (const FlightFinding& finding : FlightFindings(ReadFlight(folder), UnixMicroseconds())) {
      if (finding.kind == FlightFinding::Kind::kFailed || ++count > kMax) continue;
      text += Concat(text.empty() ? "" : "; ", finding.text);
    }
    return text;
  } catch (const std::exception& error) {
    HL_WARN("dist", "cannot read the flight records: ", error.what());
    return "";
  }
}

}  // namespace halflife::dist
