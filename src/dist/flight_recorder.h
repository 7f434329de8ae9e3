// What a rank did last: its phase, and a ring of its latest collectives. Kept in a mapped file, so
// that it outlives the process whatever ends it (also SIGKILL), and can be read while it runs.
//
//   FlightRecorder recorder(rank, world_size);
//   recorder.KeepIn(run / "flight", attempt);
//   recorder.EnterPhase("forward", step);
//   const auto number = recorder.Begin("world", 2, request, seq);
//   recorder.End(number, OpState::kDone);
//   recorder.Discard();                         // the run ended well
//
// Thread-safe but for KeepIn and Discard. An operation costs two reads of the clock and a copy of
// 128 bytes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/trace.h"
#include "dist/request.h"

namespace halflife::dist {

enum class OpState : uint8_t { kIssued, kDone, kFailed };

namespace flight {
struct Image;
}

class FlightRecorder {
 public:
  FlightRecorder(int rank, int world_size);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // From now on in a file of `folder`, named by the rank; what was recorded so far goes with it. A
  // file system that maps no files leaves it in memory, with a warning. `attempt`: equal on all
  // ranks, and new at every start.
  void KeepIn(const std::filesystem::path& folder, const std::string& attempt);
  // Removes the file, and the folder after the last of them.
  void Discard();
  // Where KeepIn put it; empty: in memory.
  const std::filesystem::path& path() const { return path_; }

  // `phase`: at most 23 bytes count.
  void EnterPhase(const char* phase, int64_t step);
  // Why this rank fails; the first call counts.
  void Fail(const std::string& cause);

  // Borrowed; null: no more. Takes phases and operations that end from now on.
  void TraceInto(Trace* trace);

  uint64_t Begin(const std::string& group, int group_size, const Request& request, int64_t seq);
  void End(uint64_t number, OpState state);
  // Of the collectives begun since the last call, by kind of group: "world", "rows", ... (all that
  // share rows together). What a collective is given or gives, whichever is more.
  std::map<std::string, int64_t> TakeBytes();

 private:
  struct Unmap {
    void operator()(flight::Image* image) const;
  };
  void Tick();
  void StopTicking();

  std::unique_ptr<flight::Image, Unmap> image_;
  std::atomic<Trace*> trace_ = nullptr;
  std::filesystem::path path_;
  std::mutex mutex_;
  std::map<std::string, int64_t> bytes_;  // under mutex_
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread ticker_;  // says four times a second that the process runs
};

}  // namespace halflife::dist
