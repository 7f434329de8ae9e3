// The contents of a checkpoint as plain types: the arena's fp32 arrays by name, and the scalars of
// the run. Only manifest.cc uses the protobuf types of the manifest.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "dist/parameter_layout.h"

namespace halflife::ckpt {

// The name of the array of main weights. The optimizer's arrays are below "optim/", for example
// "optim/m".
inline constexpr char kMainArray[] = "main";
inline constexpr char kOptimizerPrefix[] = "optim/";
// The moving average of the weights, if the run keeps one (optimizer.ema_decay).
inline constexpr char kAverageArray[] = "optim/ema";

// One fp32 array of an arena: borrowed host memory in the layout's arena order, with
// layout.num_held(sliced_end) elements.
struct ArenaArray {
  std::string name;
  float* data = nullptr;
  int64_t sliced_end = 0;  // below this element of the arena, it holds only this rank's slices
};

struct ArenaView {
  const dist::ParameterLayout* layout = nullptr;
  std::vector<ArenaArray> arrays;  // the main weights first; no others: without optimizer state

  bool has_optimizer_state() const { return arrays.size() > 1; }
  // Throws Error (exit 70) if the arena has no array of this name.
  const ArenaArray& array(std::string_view name) const {
    for (const ArenaArray& array : arrays)
      if (array.name == name) return array;
    HL_FAIL(ExitCode::kInternal, "an arena has no array '", name, "'");
  }
  // Returns the address at which this rank holds the first element of a fragment of its own slice.
  float* place(const ArenaArray& array, const dist::Fragment& fragment) const {
    return array.data + layout->PlaceOf(fragment, array.sliced_end);
  }
};

struct BlendCounter {
  std::string corpus;
  uint64_t drawn = 0;
  double weight = 0;
  Hash128 dataset;
};
// A part of a blend's order (data/blend.h). The lists have an entry for each BlendCounter.
struct BlendSegment {
  uint64_t first_sample = 0;
  std::vector<uint32_t> counts;
  std::vector<uint64_t> base;
};

struct DataCursor {
  uint32_t order_version = 0;
  uint64_t seed = 0;
  uint64_t epoch = 0;
  uint64_t next_sample = 0;
  uint64_t samples = 0;  // consumed so far
  uint64_t tokens = 0;
  Hash128 dataset;
  std::vector<BlendCounter> blend;
  uint32_t seq_len = 0;
  std::vector<std::string> classes = {};    // names, if the dataset has labelled texts
  std::vector<BlendSegment> segments = {};  // those that began before next_sample
};

struct GuardState {  // the memory of the policies for non-finite values and for spikes
  std::vector<double> loss_window;
  uint32_t consecutive_skips = 0;
  uint64_t skipped = 0;
  std::vector<uint64_t> spikes = {};  // steps (1-based) within train.rollback_window
  uint32_t rollbacks = 0;             // so far, of the run
};

struct MeshInfo {
  int world = 1, dp = 1, sp = 1, zero_stage = 0, shard = 1;
  int nodes = 1;  // hosts of the ranks, counted by a save
};

// For information only. A field that the writer does not know stays empty.
struct Versions {
  std::string git_hash;
  bool git_dirty = false;
  std::string halflife, torch, cuda, nccl, mpi, hdf5;
  std::string compiler, protobuf;  // filled in by the store
};

struct StepState {
  uint64_t step = 0;           // completed optimizer steps, including skipped ones
  uint64_t num_updates = 0;    // updates that were applied, which Adam's bias correction counts
  std::string optimizer = "";  // its name in recipes; empty: weights only
  double last_lr = 0;
  DataCursor data;
  GuardState guard;
  uint64_t rng_seed = 0;
  std::string run_id;
  std::string run_config_text;  // resolved config, protobuf text format
  // Fields of the config that change the trajectory, as flat names ("optimizer.lr" -> "0.003").
  // They are compared one by one when a run resumes.
  std::map<std::string, std::string> trajectory;
  std::string model_family;
  std::string model_config_json;
  MeshInfo mesh;
  Versions versions;
  std::map<std::string, double> metrics;  // last loss, validation loss, ...
  std::string parent_step;  // the step that this run resumed from, e.g. "step_000000000100"
  bool final = false;
};

}  // namespace halflife::ckpt
