// Reads one published step without a communicator: for eval, generate and `ckpt
// inspect|verify|diff`.
//
//   const auto step_dir = FindStep(path);   // a run, its ckpt folder, a step, or "RUN@best"
//   const StepReader reader = StepReader::Open(step_dir);
//   reader.ReadTensor(kMainArray, "norm.weight", out);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/manifest.h"
#include "ckpt/state.h"

namespace halflife::ckpt {

struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<std::string> aliases;
  std::vector<std::string> arrays;  // of which it has a part: "main", "optim/m", ...
  int num_fragments = 0;
  int64_t count() const;
};

struct FileInfo {
  std::string name;
  uint64_t bytes = 0;
};

// Returns the folder of the step that `path` names:
//   STEP                     a step's folder
//   RUN, RUN/ckpt            the newest published step of the run
//   RUN@latest, RUN@1200     the newest published step, or the one of that number
//   RUN@best                 what FindBestStep finds, which is logged with its measure
// An existing path is never split at its '@'. Throws Error kNoUsableCheckpoint if there is no such
// step.
std::filesystem::path FindStep(const std::filesystem::path& path);

struct BestStep {
  std::filesystem::path path;
  std::string metric;  // the measure: "val_loss"
  double value = 0;
};
// Returns the published step with the lowest value of the run's measure (the newest of equal ones),
// or nullopt if no step has a measure. The measure is the metric of ckpt.keep_best if the newest
// step with a best value names one, else val_loss, else loss. A step that cannot be read is skipped
// with a warning.
std::optional<BestStep> FindBestStep(const std::filesystem::path& ckpt_dir);

// Returns the folder of the run that contains a step (RUN/ckpt/step_N -> RUN), or an empty path if
// the step was copied elsewhere.
std::filesystem::path RunOfStep(const std::filesystem::path& step_dir);

class StepReader {
 public:
  // Checks frame, hash, schema, enums, exact coverage and file sizes. Throws Error
  // kNoUsableCheckpoint if one of them is wrong.
  static StepReader Open(const std::filesystem::path& step_dir);
  StepReader(StepReader&&) noexcept;
  StepReader& operator=(StepReader&&) noexcept;
  ~StepReader();

  const std::filesystem::path& path() const;
  const StepState& state() const;
  const std::vector<TensorInfo>& tensors() const;
  const std::vector<FileInfo>& files() const;
  const Manifest& manifest() const;
  Hash128 manifest_hash() const;
  uint64_t total_bytes() const;

  // `out` holds the tensor's count() floats. An alias names the same tensor. Every block is
  // verified when it is read. Throws Error kNoUsableCheckpoint with the file, the block and the
  // tensor. Thread-safe.
  void ReadTensor(std::string_view array, const std::string& name, float* out) const;
  // Reads the elements [begin, end) of the tensor.
  void ReadRange(std::string_view array, const std::string& name, int64_t begin, int64_t end,
                 float* out) const;

  struct Damage {
    std::string file, tensor, text;  // text: the complete message
    uint64_t offset = 0;             // in the file
  };
  // Checks every byte of every file, including XXH128SUMS and manifest.txtpb. Returns an empty
  // vector if all are good. Stops at the first damage of each file. Also reports shard files that
  // the manifest does not name.
  std::vector<Damage> Verify(int num_threads) const;

 private:
  class Impl;
  explicit StepReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace halflife::ckpt
