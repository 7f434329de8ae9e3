// The contents of a checkpoint as plain types: the arena's three fp32 arrays and the scalars. Only
// manifest.cc knows the protobuf manifest.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "dist/parameter_layout.h"

namespace halflife::ckpt {

// The kind of state that is stored for a tensor. kExtra: a kind that this version does not write.
enum class Kind : uint8_t { kMain, kAdamM, kAdamV, kExtra };
const char* Name(Kind kind);  // "main", "adam_m", "adam_v", "extra"

// Borrowed host memory in the layout's arena order, layout.num_held(sliced_end(kind)) elements
// each.
struct ArenaView {
  const dist::ParameterLayout* layout = nullptr;
  float* main = nullptr;
  float* adam_m = nullptr;  // null with adam_v: weights only
  float* adam_v = nullptr;
  // Below this element of the arena, the arrays hold only this rank's slices.
  int64_t main_sliced_end = 0, moments_sliced_end = 0;

  int64_t sliced_end(Kind kind) const {
    return kind == Kind::kMain ? main_sliced_end : moments_sliced_end;
  }
  // Where this rank holds the first element of a fragment of its own slice.
  float* place(Kind kind, const dist::Fragment& fragment) const {
    return array(kind) + layout->PlaceOf(fragment, sliced_end(kind));
  }

  // Error (exit 70) for kExtra, which no arena holds.
  float* array(Kind kind) const {
    switch (kind) {
      case Kind::kMain:
        return main;
      case Kind::kAdamM:
        return adam_m;
      case Kind::kAdamV:
        return adam_v;
      case Kind::kExtra:
        break;
    }
    HL_FAIL(ExitCode::kInternal, "an arena has no array for ", Name(kind), " state");
  }
  // {main} or {main, adam_m, adam_v}
  std::vector<Kind> kinds() const {
    if (adam_m == nullptr) return {Kind::kMain};
    return {Kind::kMain, Kind::kAdamM, Kind::kAdamV};
  }
};

struct BlendCounter {
  std::string corpus;
  uint64_t drawn = 0;
  double weight = 0;
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
  std::vector<std::string> classes = {};  // names, if the dataset has labelled texts
};

struct GuardState {  // the memory of the policy for non-finite values
  std::vector<double> loss_window;
  uint32_t consecutive_skips = 0;
  uint64_t skipped = 0;
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
  uint64_t step = 0;         // optimiser steps done (skipped ones included)
  uint64_t num_updates = 0;  // updates that were applied: Adam's bias correction counts these
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
