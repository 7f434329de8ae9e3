// The binary layout of a flight record, which FlightRecorder maps and flight_report.cc reads.
// Writer and reader must have the same byte order. Several threads write at once. An entry whose
// number is 0 is empty or being written, and readers skip it.
#pragma once

#include <atomic>
#include <cstdint>

namespace halflife::dist::flight {

constexpr char kMagic[8] = {'H', 'L', 'F', 'L', 'I', 'G', 'H', 'T'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kNumEntries = 1024;

struct Entry {
  std::atomic<uint64_t> number;  // 1 + the number of earlier operations; 0: empty or being written
  int64_t issued_us, ended_us;   // Unix time
  int64_t seq, bytes;
  int32_t index, group_size;
  uint8_t kind;                // OpKind
  std::atomic<uint8_t> state;  // OpState
  char group[22];
  char what[54];
};
static_assert(sizeof(Entry) == 128);

struct Header {
  char magic[8];
  uint32_t version, rank, world_size, pid;
  char host[64], attempt[16];
  std::atomic<int64_t> alive_us;  // written four times a second
  int64_t phase_since_us, step;
  char phase[24];
  int64_t failed_us;  // 0: not failed
  char cause[496];
  std::atomic<uint64_t> num_operations;
};

struct Image {
  Header header;
  Entry entries[kNumEntries];
};

}  // namespace halflife::dist::flight
