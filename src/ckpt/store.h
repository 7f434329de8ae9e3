// The checkpoints of one run folder: save, discover, load, retain. The promise: never continue
// wrongly. A load is either exactly a saved state, or a loud fallback to an older exact state, or
// an Error.
//
// Every rank calls Save and Load together. The state of a step is cut into one safetensors file per
// rank. Only the manifest decides what the step contains. One rename publishes it (see
// docs/checkpoint_format.md for the protocol).
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
  double timeout_s = 600;  // for all ranks to have written
};

struct SaveReport {
  uint64_t bytes = 0;  // over all ranks
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
// "auto", "none", "step=N", "path=DIR"; else Error kUsage.
ResumeRequest ParseResume(const std::string& text);

// The values that must agree with the checkpoint. An error lists all differences, with both values.
struct Expectation {
  std::string model_family;
  std::string model_config_json;  // compared field by field, as "model.<field>"
  // Brings the form that an earlier program stored into that of model_config_json. Empty: as it is.
  std::function<std::string(const std::string&)> canonical_model_config = {};
  std::map<std::string, std::string> trajectory;
  // The values of trajectory fields that an old checkpoint does not have: the behaviour of the
  // program that wrote it.
  std::map<std::string, std::string> trajectory_defaults = {};
  std::vector<std::string> allow_change;                     // names of fields that may differ
  uint64_t max_step = std::numeric_limits<uint64_t>::max();  // the run's last: train.steps
};

struct LoadReport {
  StepState state;
  std::filesystem::path path;       // canonical
  bool own = false;                 // a step of this store that was published and not renamed
  bool fell_back = false;           // an older step than the newest one found
  std::vector<std::string> damage;  // one banner per damaged step passed over
};

class CheckpointStore {
 public:
  CheckpointStore(std::filesystem::path ckpt_dir, dist::Communicator& control,
                  const StoreConfig& config);

  // Collective, synchronous; the layout has one slice per rank. Throws the same Error on all ranks
  // when any rank failed (kCheckpointIo; kEnvironment when the run folder has another owner;
  // kNonFinite for a NaN in main): older steps are untouched and the attempt is moved to .trash.
  // The caller decides whether to go on. A step number that exists is replaced; newer ones are
  // renamed to step_N.superseded, as by Load.
  SaveReport Save(const ArenaView& arena, const StepState& state);

  // Collective. nullopt: no step there at all (kAuto) or kNone. Error kNoUsableCheckpoint where
  // steps exist but none is usable; kUsage where the config disagrees; kCheckpointIo where reading
  // failed. Every rank's arena is filled, of what it holds in slices its own. Where a step was
  // asked for by name, from which the run goes on, the newer ones of this folder are renamed to
  // step_N.superseded, or all of them where that step lies elsewhere.
  std::optional<LoadReport> Load(const ResumeRequest& request, const Expectation& expectation,
                                 const ArenaView& arena);

  // Rank 0 calls `check` before writing and before publishing (ownership of the run folder); it
  // throws to refuse.
  void SetOwnershipCheck(std::function<void()> check) { ownership_check_ = std::move(check); }

 private:
  std::filesystem::path dir_;
  dist::Communicator& control_;
  StoreConfig config_;
  std::function<void()> ownership_check_;
};

}  // namespace halflife::ckpt
