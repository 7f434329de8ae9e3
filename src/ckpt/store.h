// The checkpoints of one run folder: save, find, load, retain. A run never continues from a wrong
// state: a load returns exactly a saved state, falls back to an older exact state with a warning,
// or throws an Error.
//
// Every rank calls Save and Load together. The state of a step is split into one safetensors file
// per rank. Only the manifest decides what the step contains. One rename publishes it
// (docs/checkpoint_format.md describes the protocol).
//
//   CheckpointStore store(run_dir / "ckpt", control, {.retention = {.keep_last = 3}});
//   store.Save(arena, state);
//   const auto loaded = store.Load({.mode = ResumeMode::kAuto}, expectation, arena);
#pragma once

#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/retention.h"
#include "ckpt/state.h"
#include "dist/communicator.h"

namespace halflife::ckpt {

struct StoreConfig {
  RetentionPolicy retention = {};
  // A rank that writes its shard later than the others by this many seconds cancels the save. Later
  // by twice the time, the save throws Error kTimeout.
  double timeout_s = 600;
};

struct SaveReport {
  uint64_t bytes = 0;  // Over all ranks.
  double seconds = 0;
  // Seconds until the step was durable (published and spot-checked). The rest of `seconds` is the
  // deletion of old steps, which is slow on file systems that trim on delete.
  double durable_seconds = 0;
  std::filesystem::path path;
};

enum class ResumeMode { kAuto, kNone, kStep, kPath };
struct ResumeRequest {
  ResumeMode mode = ResumeMode::kAuto;
  uint64_t step = 0;           // kStep
  std::filesystem::path path;  // kPath: a step folder
};
// Accepts "auto", "none", "step=N" and "path=DIR". Throws Error kUsage otherwise.
ResumeRequest ParseResume(const std::string& text);

// The values that must agree with the checkpoint. An error lists all differences, with both values.
struct Expectation {
  std::string model_family;
  std::string model_config_json;  // Compared field by field, as "model.<field>".
  // Converts the form of an older program to that of model_config_json. Empty: no conversion.
  std::function<std::string(const std::string&)> canonical_model_config = {};
  std::map<std::string, std::string> trajectory;
  // The values of trajectory fields that an old checkpoint does not have: the behaviour of the
  // program that wrote it.
  std::map<std::string, std::string> trajectory_defaults = {};
  std::vector<std::string> allow_change;  // Names of fields that may differ.
  // Whether a field may differ although it is not in allow_change. Empty: none may.
  std::function<bool(const std::string& field)> may_differ = {};
  // Throws if the run cannot continue from a step. Called on every rank before steps are renamed.
  // Must not throw DamageError, which would mean that the step itself is damaged. Empty: no check.
  std::function<void(const StepState&, const std::filesystem::path& step_dir)> check_state = {};
  uint64_t max_step = std::numeric_limits<uint64_t>::max();  // The run's last step: train.steps.
};

struct LoadReport {
  StepState state;
  std::filesystem::path path;       // Canonical.
  bool own = false;                 // A step of this store that was published and not renamed.
  bool fell_back = false;           // The step is older than the newest one found.
  std::vector<std::string> damage;  // One warning per damaged step that was skipped.
};

class CheckpointStore {
 public:
  CheckpointStore(std::filesystem::path ckpt_dir, dist::Communicator& control,
                  const StoreConfig& config);

  // Collective and synchronous. The layout has one slice per rank. If any rank fails, throws the
  // same Error on all ranks: kCheckpointIo, kEnvironment if the run folder has another owner, or
  // kNonFinite for a NaN in main. Older steps are then unchanged, and the attempt is moved to
  // .trash. The caller decides whether to continue. A step number that exists is replaced. Newer
  // steps are renamed to step_N.superseded, as by Load.
  SaveReport Save(const ArenaView& arena, const StepState& state);

  // Collective. Fills every rank's arena; of sliced arrays, with the rank's own slices. Returns
  // nullopt if there is no step (kAuto), or for kNone. Throws:
  // - kNoUsableCheckpoint if steps exist but none is usable;
  // - kUsage if the config disagrees;
  // - kCheckpointIo if reading fails.
  // If a step was requested by name, the run continues from it: newer steps of this folder are
  // renamed to step_N.superseded, or all of them if the step is in another folder.
  //
  // With `allocate`, the arrays of `arena` need no memory. It is called before the first step is
  // read, and returns the same arrays with memory.
  std::optional<LoadReport> Load(const ResumeRequest& request, const Expectation& expectation,
                                 const ArenaView& arena,
                                 const std::function<ArenaView()>& allocate = {});

  // Rank 0 calls `check` before writing and before publishing, to check that it still owns the run
  // folder. `check` throws if it does not.
  void SetOwnershipCheck(std::function<void()> check) { ownership_check_ = std::move(check); }

 private:
  std::filesystem::path dir_;
  dist::Communicator& control_;
  StoreConfig config_;
  std::function<void()> ownership_check_;
  bool knows_hosts_ = false;
  std::vector<std::string> hosts_;  // By rank; only on rank 0.

  const std::vector<std::string>& Hosts();
};

}  // namespace halflife::ckpt
