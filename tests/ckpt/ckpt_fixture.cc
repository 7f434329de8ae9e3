#include "ckpt/ckpt_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <random>

#include "ckpt/shard_writer.h"
#include "ckpt/stored_layout.h"
#include "core/concat.h"
#include "core/philox.h"
#include "dist/local_communicator.h"

namespace halflife::ckpt::test {
namespace {

namespace fs = std::filesystem;

float RandomBits(uint64_t key, int64_t element) {
  auto bits = static_cast<uint32_t>(SplitMix64(key + static_cast<uint64_t>(element)));
  if ((bits & 0x7f800000u) == 0x7f800000u) bits &= ~0x40000000u;  // Not NaN or infinity.
  return std::bit_cast<float>(bits);
}

constexpr const char* kNames[] = {kMainArray, "optim/m", "optim/v"};

}  // namespace

TestArena::TestArena(const std::vector<dist::ParamSpec>& specs, int num_slices)
    : layout_(specs,
              {.first_bucket_bytes = 4096, .bucket_bytes = 1 << 16, .num_slices = num_slices}) {
  for (std::vector<float>& array : arrays_) array.resize(layout_.num_elements());
}

ArenaView TestArena::view() {
  ArenaView view = {&layout_, {}};
  for (size_t i = 0; i < arrays_.size(); ++i) view.arrays.push_back({kNames[i], arrays_[i].data()});
  return view;
}

std::vector<float> TestArena::Expected(uint64_t seed, size_t array) const {
  std::vector<float> values(layout_.num_elements());
  for (size_t param = 0; param < layout_.specs().size(); ++param) {
    const dist::ParamSpec& spec = layout_.specs()[param];
    const uint64_t key =
        SplitMix64(seed * 4 + array) ^ SplitMix64(NameHash32(spec.name.data(), spec.name.size()));
    float* const at = values.data() + layout_.offset(static_cast<int>(param));
    for (int64_t i = 0; i < spec.count(); ++i) at[i] = RandomBits(key, i);
  }
  return values;
}

void TestArena::Fill(uint64_t seed) {
  for (size_t i = 0; i < arrays_.size(); ++i) arrays_[i] = Expected(seed, i);
}

void TestArena::FillWithGarbage() {
  for (std::vector<float>& array : arrays_) std::fill(array.begin(), array.end(), -7.5f);
}

std::string TestArena::DifferenceFrom(uint64_t seed, bool with_states) const {
  for (size_t array = 0; array < arrays_.size(); ++array) {
    const std::vector<float>& found = arrays_[array];
    std::vector<float> expected = Expected(seed, array);
    if (array > 0 && !with_states) std::fill(expected.begin(), expected.end(), 0.0f);
    if (std::memcmp(found.data(), expected.data(), 4 * expected.size()) == 0) continue;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::memcmp(&found[i], &expected[i], 4) == 0) continue;
      return Concat(kNames[array], " element ", i, " of the arena: ", found[i], " instead of ",
                    expected[i]);
    }
  }
  return "";
}

std::string TestArena::SliceDifferenceFrom(uint64_t seed, int slice) const {
  for (size_t array = 0; array < arrays_.size(); ++array) {
    const std::vector<float> expected = Expected(seed, array);
    for (const dist::Bucket& bucket : layout_.buckets()) {
      const auto range = layout_.SliceOf(bucket, slice);
      for (int64_t i = range.arena_begin; i < range.arena_begin + range.count; ++i)
        if (std::memcmp(&arrays_[array][i], &expected[i], 4) != 0)
          return Concat(kNames[array], " element ", i, " of the arena: ", arrays_[array][i],
                        " instead of ", expected[i]);
    }
  }
  return "";
}

std::vector<dist::ParamSpec> SmallSpecs() {
  return {{.name = "embeddings.weight",
           .shape = {37, 16},
           .weight_decay = true,
           .aliases = {"lm_head.weight"}},
          {.name = "layers.0.norm.weight", .shape = {16}, .region = dist::Region::kFp32},
          {.name = "layers.0.attn.q_proj.weight", .shape = {16, 64}, .weight_decay = true},
          {.name = "layers.0.attn.empty", .shape = {0, 16}},
          {.name = "layers.0.attn.scale", .shape = {}, .region = dist::Region::kFp32},
          {.name = "layers.0.mlp.up_proj.weight", .shape = {193, 17}, .weight_decay = true}};
}

std::vector<dist::ParamSpec> LargeSpecs() {
  return {{.name = "first", .shape = {5}},
          {.name = "large", .shape = {9'400'000}},
          {.name = "last", .shape = {3, 7}}};
}

std::vector<dist::ParamSpec> RandomSpecs(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<dist::ParamSpec> specs;
  const int count = 1 + static_cast<int>(random() % 12);
  for (int i = 0; i < count; ++i) {
    dist::ParamSpec spec{.name = Concat("tensor.", i)};
    const int dims = static_cast<int>(random() % 3);
    for (int d = 0; d < dims; ++d) spec.shape.push_back(static_cast<int64_t>(random() % 300));
    if (random() % 8 == 0) spec.shape = {static_cast<int64_t>(random() % 200'000)};
    if (random() % 3 == 0) spec.region = dist::Region::kFp32;
    if (random() % 4 == 0) spec.aliases = {Concat("tied.", i)};
    specs.push_back(std::move(spec));
  }
  return specs;
}

StepState MakeState(uint64_t step) {
  StepState state;
  state.step = step;
  state.num_updates = step - 1;
  state.optimizer = "adamw";
  state.last_lr = 0.1 + 1e-17;
  state.data = {.order_version = 1,
                .seed = 7,
                .epoch = 2,
                .next_sample = step * 8,
                .samples = step * 8,
                .tokens = step * 8 * 512,
                .dataset = {0x123456789abcdef0, 42},
                .blend = {{"books", 3, 0.25}},
                .seq_len = 512};
  state.guard = {.loss_window = {2.5, 2.25},
                 .consecutive_skips = 1,
                 .skipped = 3,
                 .spikes = {7, 9},
                 .rollbacks = 2};
  state.rng_seed = 7;
  state.run_id = "run";
  state.run_config_text = "model { layers: 2 }\n";
  state.trajectory = {{"optimizer.lr", "0.003"}, {"data.seq_len", "512"}};
  state.model_family = "gla";
  state.model_config_json = R"({"num_layers": 2, "mixer": {"name": "gla"}})";
  state.versions.halflife = "0.1.0";
  state.metrics = {{"loss", 1000.0 / static_cast<double>(step)}};
  state.parent_step = "step_000000000001";
  return state;
}

Expectation MatchingExpectation() {
  const StepState state = MakeState(1);
  return {.model_family = state.model_family,
          .model_config_json = state.model_config_json,
          .trajectory = state.trajectory,
          .allow_change = {}};
}

Manifest DerivedManifest(const std::vector<dist::ParamSpec>& specs, int num_slices) {
  const dist::ParameterLayout layout(
      specs, {.first_bucket_bytes = 4096, .bucket_bytes = 1 << 20, .num_slices = num_slices});
  const std::vector<std::string> arrays = {kMainArray, "optim/m"};
  Manifest manifest;
  manifest.state = MakeState(9);
  manifest.attempt = "0123abcd";
  manifest.tensors = TensorEntries(layout);
  manifest.arrays = ArrayEntries(layout, arrays);
  std::vector<FileEntry> files;
  for (int rank = 0; rank < num_slices; ++rank) {
    const ShardPlan plan = PlanShard(layout, arrays, rank);
    const std::string header =
        MakeHeader(plan, {.step = 9, .rank = rank, .attempt = manifest.attempt});
    uint64_t table = 0;
    for (const ShardPiece& piece : plan.pieces)
      table += kHashBytes * NumBlocks(4 * (piece.end - piece.begin), kBlockBytes);
    files.push_back({.name = ShardName(rank),
                     .rank = rank,
                     .bytes = header.size() + plan.data_bytes() + table,
                     .data_offset = header.size(),
                     .header_hash = HashBytes(header),
                     .slice = rank});
  }
  SetFiles(std::move(files), layout, &manifest);
  return manifest;
}

SaveReport SaveStep(const fs::path& run, const SaveOptions& options,
                    const std::vector<dist::ParamSpec>& specs) {
  std::mutex mutex;
  SaveReport report;
  dist::LocalWorld::Run(options.world, [&](dist::Communicator& control) {
    TestArena arena(specs, options.world);
    arena.Fill(options.step);
    StepState state = MakeState(options.step);
    state.mesh = {.world = options.world, .dp = options.world};
    CheckpointStore store(run / "ckpt", control, options.config);
    const SaveReport mine = store.Save(arena.view(), state);
    const std::lock_guard lock(mutex);
    report = mine;
  });
  return report;
}

std::optional<LoadReport> LoadStep(const fs::path& run, int world,
                                   const std::vector<dist::ParamSpec>& specs,
                                   const ResumeRequest& request, const Expectation& expectation) {
  std::mutex mutex;
  std::optional<LoadReport> report;
  dist::LocalWorld::Run(world, [&](dist::Communicator& control) {
    TestArena arena(specs, world);
    arena.FillWithGarbage();
    CheckpointStore store(run / "ckpt", control, {});
    const std::optional<LoadReport> mine = store.Load(request, expectation, arena.view());
    const std::lock_guard lock(mutex);
    if (mine) {
      EXPECT_EQ(arena.DifferenceFrom(mine->state.step), "") << "rank " << control.rank();
    }
    report = mine;
  });
  return report;
}

std::vector<std::string> ListCkpt(const fs::path& run) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(run / "ckpt")) {
    const std::string name = entry.path().filename().string();
    if (name != ".trash") {
      names.push_back(name);
      continue;
    }
    for (const fs::directory_entry& trashed : fs::directory_iterator(entry.path())) {
      const std::string full = trashed.path().filename().string();
      const bool temporary = full.starts_with(".tmp");  // .tmp_step_N.<attempt>.<hex>
      names.push_back(".trash/" + full.substr(0, full.find('.', temporary ? 1 : 0)));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace halflife::ckpt::test
