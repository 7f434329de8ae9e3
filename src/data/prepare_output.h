// Where `prepare` writes a dataset, on how many threads, and who follows it: what plain text,
// labelled text and synthetic rows have alike.
//
//   const PrepareOutput output = {.out = "books.data", .threads = 4};
//   output.Check();
//   while (WorkIsLeft()) {
//     output.RequireGoingOn();
//     output.Report({.phase = "tokenising"});
//   }
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>

namespace halflife::data {

struct PrepareProgress {
  const char* phase = "";  // "training the tokenizer" | "tokenising" | "generating"
  int64_t num_documents = 0;
  int64_t text_bytes = 0;
  uint64_t disk_bytes = 0;  // of the input read so far, compressed where the file is; or of rows
  uint64_t total_disk_bytes = 0;
};

struct PrepareOutput {
  std::filesystem::path out;
  int threads = 0;  // 0: all cores
  int64_t shard_tokens = int64_t{1} << 26;
  std::function<void(const PrepareProgress&)> on_progress = nullptr;  // after each unit of work
  const std::atomic<bool>* stop = nullptr;  // set: give up soon, leave nothing; Error kInterrupted

  // Error kUsage for what cannot be.
  void Check() const;
  int NumThreads() const;
  // Before each unit of work. Error kInterrupted once `stop` is set.
  void RequireGoingOn() const;
  void Report(const PrepareProgress& progress) const;
};

}  // namespace halflife::data
