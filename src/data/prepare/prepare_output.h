// The output of `prepare`: folder, number of threads, progress reports and cancellation. Plain
// text, labelled text and synthetic rows share it.
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
  // Bytes of the input read so far, as stored on disk; for synthetic rows the bytes of rows.
  uint64_t disk_bytes = 0;
  uint64_t total_disk_bytes = 0;
};

struct PrepareOutput {
  std::filesystem::path out;
  int threads = 0;  // 0: all cores
  int64_t shard_tokens = int64_t{1} << 26;
  std::function<void(const PrepareProgress&)> on_progress = nullptr;  // after each unit of work
  // If set to true: stop soon, leave no output and throw Error kInterrupted.
  const std::atomic<bool>* stop = nullptr;

  // Throws Error kUsage for invalid values.
  void Check() const;
  int NumThreads() const;
  // Call before each unit of work. Throws Error kInterrupted once `stop` is true.
  void RequireGoingOn() const;
  void Report(const PrepareProgress& progress) const;
};

}  // namespace halflife::data
