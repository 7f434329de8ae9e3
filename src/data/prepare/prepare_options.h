// The options that all kinds of `prepare` share.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace halflife::data {

constexpr double kUsualValidationShare = 0.05;

// The input of `prepare`, for plain text and for labelled text.
struct PrepareInput {
  std::vector<std::string> paths;  // file names, folders or patterns, see FindInputFiles
  // Inputs of the validation split. If given, all of `paths` is for training, and
  // validation_fraction and split_seed have no effect.
  std::vector<std::string> validation_paths = {};
  std::string tokenizer = {};  // see OpenTokenizer
  std::string field = "text";  // the field of a record that holds the text
  // The share of documents for validation, chosen by their content; 0: none. If not set, the
  // default share is used, or a tail of that share if there are only few documents and all are
  // whole text files.
  std::optional<double> validation_fraction = std::nullopt;
  uint64_t split_seed = 0;
  std::optional<double> validation_tail;  // see ChunkerConfig; replaces validation_fraction
  bool replace_invalid_utf8 = false;
  // The longest document or record that is held in memory as a whole, in bytes.
  int64_t max_document_bytes = int64_t{256} << 20;

  // Throws Error kUsage for invalid values. File formats and tokenizers are checked by the code
  // that reads them.
  void Check() const;
  double FractionOrUsual() const { return validation_fraction.value_or(kUsualValidationShare); }
};

struct PrepareProgress {
  const char* phase = "";  // "training the tokenizer" | "tokenising" | "generating"
  int64_t num_documents = 0;
  int64_t text_bytes = 0;
  // Bytes of the input read so far, as stored on disk; for synthetic rows the bytes of rows.
  uint64_t disk_bytes = 0;
  uint64_t total_disk_bytes = 0;
};

// The output of `prepare`: folder, number of threads, progress reports and cancellation. Plain
// text, labelled text and synthetic rows share it.
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
