#include "dist/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "core/host.h"
#include "core/log.h"
#include "core/threads.h"
#include "dist/flight_report.h"

namespace halflife::dist {
namespace {

namespace fs = std::filesystem;
using flight::Entry;
using flight::Image;

// Truncates the text to the field, which always ends with a zero.
template <size_t kSize>
void SetText(char (&field)[kSize], std::string_view text) {
  const size_t count = std::min(text.size(), kSize - 1);
  std::memcpy(field, text.data(), count);
  std::memset(field + count, 0, kSize - count);
}

Image* MapImage(int fd) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = ::mmap(nullptr, sizeof(Image), PROT_READ | PROT_WRITE, flags, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Image*>(memory);
}

}  // namespace

void FlightRecorder::Unmap::operator()(Image* image) const { ::munmap(image, sizeof(Image)); }

FlightRecorder::FlightRecorder(int rank, int world_size) : image_(MapImage(-1)) {
  if (image_ == nullptr) throw std::bad_alloc();
  flight::Header& header = image_->header;
  std::memcpy(header.magic, flight::kMagic, sizeof(header.magic));
  header.version = flight::kVersion;
  header.rank = static_cast<uint32_t>(rank);
  header.world_size = static_cast<uint32_t>(world_size);
  header.pid = static_cast<uint32_t>(::getpid());
  SetText(header.host, HostName());
  EnterPhase("start", 0);
}

FlightRecorder::~FlightRecorder() { StopTicking(); }

void FlightRecorder::KeepIn(const fs::path& folder, const std::string& attempt) {
  HL_CHECK(path_.empty(), "a flight record has its file already");
  SetText(image_->header.attempt, attempt);
  image_->header.alive_us = UnixMicroseconds();
  const fs::path path = folder / FlightRecordName(static_cast<int>(image_->header.rank));
  std::error_code error;
  fs::create_directories(folder, error);
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  // The file is written in full instead of only extended. On a full disk this fails here and not
  // with a signal when the mapping is accessed later.
  Image* mapped = nullptr;
  if (fd) {
    const ssize_t written = ::pwrite(fd.get(), image_.get(), sizeof(Image), 0);
    if (written == ssize_t{sizeof(Image)}) {
      mapped = MapImage(fd.get());
    } else if (written >= 0) {
      errno = ENOSPC;
    }
  }
  if (mapped == nullptr) {
    HL_WARN("dist", "cannot write a flight record in ", folder.string(), ": ",
            internal::ErrnoText(errno),
            "; after a failure it will not be known what the ranks were doing");
    if (fd) fs::remove(path, error);  // a part of a record would hide those of other ranks
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    image_.reset(mapped);
    file_ = std::move(fd);
    path_ = path;
  }
  ticker_ = StartThread([this] { Tick(); });
}

void FlightRecorder::Tick() {
  constexpr int kTicksPerWrite = 8;
  std::unique_lock lock(mutex_);
  for (int tick = 1; !stopping_; ++tick) {
    image_->header.alive_us = UnixMicroseconds();
    stop_.wait_for(lock, std::chrono::milliseconds(250));
    if (tick % kTicksPerWrite != 0) continue;
    // By itself, the kernel writes a mapped page after 30 seconds. The lock is not held, because
    // the call may wait for a slow file system. It is a hint, so errors are ignored.
    lock.unlock();
    ::sync_file_range(file_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
    lock.lock();
  }
}

void FlightRecorder::StopTicking() {
  if (!ticker_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  ticker_.join();
}

void FlightRecorder::Discard() {
  if (path_.empty()) return;
  StopTicking();
  std::error_code ignored;
  fs::remove(path_, ignored);
  fs::remove(path_.parent_path(), ignored);  // fails while other records are in the folder
  const std::lock_guard lock(mutex_);
  path_.clear();
}

void FlightRecorder::TraceInto(Trace* trace) {
  const std::lock_guard lock(mutex_);
  const flight::Header& header = image_->header;
  if (Trace* const former = trace_)  // the current phase has no end yet
    former->Slice("phases", header.phase, header.phase_since_us, UnixMicroseconds());
  trace_ = trace;
}

fs::path FlightRecorder::Folder() const {
  const std::lock_guard lock(mutex_);
  return path_.parent_path();
}

void FlightRecorder::EnterPhase(const char* phase, int64_t step) {
  const std::lock_guard lock(mutex_);
  flight::Header& header = image_->header;
  const int64_t now_us = UnixMicroseconds();
  double& longest_s = longest_s_[header.phase];
  longest_s = std::max(longest_s, in_phase_.Lap());
  if (header.step != step && std::string_view(phase) != "start") ++num_steps_;
  if (Trace* const trace = trace_)
    trace->Slice("phases", header.phase, header.phase_since_us, now_us);
  header.phase_since_us = now_us;
  header.step = step;
  SetText(header.phase, phase);
}

void FlightRecorder::Fail(const std::string& cause) {
  const std::lock_guard lock(mutex_);
  flight::Header& header = image_->header;
  if (header.failed_us != 0) return;
  SetText(header.cause, cause);
  header.failed_us = UnixMicroseconds();
}

uint64_t FlightRecorder::Begin(const std::string& group, int group_size, const Request& request,
                               int64_t seq, bool on_device) {
  const std::lock_guard lock(mutex_);
  bytes_[KindOfGroup(group)] += request.bytes();
  const uint64_t number = ++image_->header.num_operations;
  Entry& entry = image_->entries[(number - 1) % flight::kNumEntries];
  entry.number = 0;
  entry.issued_us = UnixMicroseconds();
  entry.ready_us = on_device ? 0 : entry.issued_us;
  entry.ended_us = 0;
  entry.on_device = on_device ? 1 : 0;
  entry.seq = seq;
  entry.bytes = request.bytes();
  entry.index = request.tag.index;
  entry.group_size = group_size;
  entry.kind = static_cast<uint8_t>(request.kind);
  entry.state = static_cast<uint8_t>(OpState::kIssued);
  SetText(entry.group, group);
  SetText(entry.what, request.tag.what);
  entry.number = number;
  return number;
}

std::vector<FlightRecorder::DeviceHead> FlightRecorder::DeviceHeads() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, const Entry*> oldest;
  for (const Entry& entry : image_->entries) {
    if (entry.number == 0 || entry.on_device == 0) continue;
    if (entry.state != static_cast<uint8_t>(OpState::kIssued)) continue;
    const Entry*& head = oldest[entry.group];
    if (head == nullptr || entry.number < head->number) head = &entry;
  }
  std::vector<DeviceHead> heads;
  for (const auto& [group, entry] : oldest) {
    heads.push_back({Concat(Name(static_cast<OpKind>(entry->kind)), " '", entry->what, "' ",
                            entry->index, " (group ", group, ", seq ", entry->seq, ")"),
                     entry->issued_us, entry->ready_us});
  }
  return heads;
}

FlightRecorder::PhaseState FlightRecorder::Phase() const {
  const std::lock_guard lock(mutex_);
  const flight::Header& header = image_->header;
  const auto longest = longest_s_.find(header.phase);
  return {.name = header.phase,
          .since_us = header.phase_since_us,
          .step = header.step,
          .num_steps = num_steps_,
          .longest_s = longest == longest_s_.end() ? 0 : longest->second};
}

std::map<std::string, int64_t> FlightRecorder::TakeBytes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(bytes_, {});
}

void FlightRecorder::Ready(uint64_t number) {
  Entry& entry = image_->entries[(number - 1) % flight::kNumEntries];
  if (entry.number == number) entry.ready_us = UnixMicroseconds();
}

void FlightRecorder::End(uint64_t number, OpState state) {
  Entry& entry = image_->entries[(number - 1) % flight::kNumEntries];
  if (entry.number != number) return;  // a later operation has overwritten the entry
  int64_t not_ended = 0;
  if (!entry.ended_us.compare_exchange_strong(not_ended, UnixMicroseconds())) return;
  entry.state = static_cast<uint8_t>(state);
  if (trace_ == nullptr) return;
  const std::lock_guard lock(mutex_);  // TraceInto may end the trace meanwhile
  if (Trace* const trace = trace_) {
    const int64_t ready_us = entry.ready_us;
    trace->Overlapping(
        entry.group,
        Concat(Name(static_cast<OpKind>(entry.kind)), " ", entry.what, " ", entry.index),
        ready_us == 0 ? entry.issued_us : ready_us, entry.ended_us, entry.bytes);
  }
}

}  // namespace halflife::dist
