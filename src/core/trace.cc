#include "core/trace.h"

#include <nlohmann/json.hpp>

namespace halflife {
namespace {

using Json = nlohmann::ordered_json;

// Returns the event that names a process or a track; phase "M" means metadata.
Json NameEvent(const char* of, int rank, int track, const std::string& name) {
  return {{"ph", "M"}, {"name", of}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}};
}

}  // namespace

Trace::Trace(int rank) : rank_(rank) {
  Add(NameEvent("process_name", rank, 0, "rank " + std::to_string(rank)).dump());
}

void Trace::Add(const std::string& event) {
  if (!events_.empty()) events_ += ",\n";
  events_ += event;
}

int Trace::TrackOf(const std::string& track) {
  const auto [at, is_new] = tracks_.emplace(track, static_cast<int>(tracks_.size()) + 1);
  if (is_new) Add(NameEvent("thread_name", rank_, at->second, track).dump());
  return at->second;
}

void Trace::Slice(const std::string& track, const std::string& name, int64_t begin_us,
                  int64_t end_us) {
  const std::lock_guard lock(mutex_);
  Add(Json({{"ph", "X"},
            {"name", name},
            {"pid", rank_},
            {"tid", TrackOf(track)},
            {"ts", begin_us},
            {"dur", end_us - begin_us}})
          .dump());
}

// Writes two events (begin and end) with a common id.
void Trace::Overlapping(const std::string& track, const std::string& name, int64_t begin_us,
                        int64_t end_us, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t id = ++num_overlapping_;
  const auto event = [&](const char* phase, int64_t at_us) {
    return Json({{"ph", phase},
                 {"cat", track},
                 {"name", name},
                 {"id2", {{"local", std::to_string(id)}}},
                 {"pid", rank_},
                 {"tid", TrackOf(track)},
                 {"ts", at_us}});
  };
  Json begin = event("b", begin_us);
  begin["args"] = {{"bytes", bytes}};
  Add(begin.dump());
  Add(event("e", end_us).dump());
}

std::string Trace::Events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

std::string TraceFile(const std::vector<std::string>& events_of_ranks) {
  std::string file = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  for (size_t rank = 0; rank < events_of_ranks.size(); ++rank)
    file += (rank == 0 ? "\n" : ",\n") + events_of_ranks[rank];
  return file + "\n]}\n";
}

}  // namespace halflife
