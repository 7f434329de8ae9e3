#include "interop/hf_weights.h"

#include <c10/util/BFloat16.h>
#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"

namespace halflife::interop {
namespace {

namespace fs = std::filesystem;
using ckpt::StoredDType;

constexpr int64_t kPieceElements = 1 << 20;

struct Shard {
  std::vector<const WeightToWrite*> weights;
  uint64_t bytes = 0;
};

uint64_t BytesOf(const WeightToWrite& weight, StoredDType dtype) {
  return static_cast<uint64_t>(ckpt::CountElements(weight.shape)) * ckpt::SizeOf(dtype);
}

std::vector<Shard> Cut(const std::vector<WeightToWrite>& weights, StoredDType dtype,
                       uint64_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  for (const WeightToWrite& weight : weights) {
    const uint64_t bytes = BytesOf(weight, dtype);
    if (!shards.back().weights.empty() && shards.back().bytes + bytes > max_shard_bytes)
      shards.emplace_back();
    shards.back().weights.push_back(&weight);
    shards.back().bytes += bytes;
  }
  return shards;
}

std::string ShardFileName(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

void CheckFinite(const WeightToWrite& weight, int64_t begin, const std::vector<float>& before,
                 int64_t i, float after) {
  HL_CHECK_AS(ExitCode::kNonFinite, std::isfinite(after), "weight ", weight.name, ", element ",
              begin + i, ": ", before[static_cast<size_t>(i)],
              std::isfinite(before[static_cast<size_t>(i)])
                  ? " does not fit into bf16. Export with --dtype fp32."
                  : " is not finite");
}

void WriteWeight(const WeightToWrite& weight, StoredDType dtype, int fd, const fs::path& path) {
  const int64_t total = ckpt::CountElements(weight.shape);
  std::vector<float> values;
  std::vector<c10::BFloat16> rounded;
  for (int64_t begin = 0; begin < total; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, total - begin);
    values.resize(static_cast<size_t>(count));
    weight.read(begin, begin + count, values.data());
    if (dtype == StoredDType::kF32) {
      for (int64_t i = 0; i < count; ++i)
        CheckFinite(weight, begin, values, i, values[static_cast<size_t>(i)]);
      WriteAll(fd, values.data(), values.size() * sizeof(float), path, ExitCode::kEnvironment);
      continue;
    }
    rounded.resize(values.size());
    for (int64_t i = 0; i < count; ++i) {
      rounded[static_cast<size_t>(i)] = c10::BFloat16(values[static_cast<size_t>(i)]);
      CheckFinite(weight, begin, values, i, static_cast<float>(rounded[static_cast<size_t>(i)]));
    }
    WriteAll(fd, rounded.data(), rounded.size() * sizeof(c10::BFloat16), path,
             ExitCode::kEnvironment);
  }
}

void WriteShard(const Shard& shard, StoredDType dtype, const fs::path& path) {
  std::vector<ckpt::safetensors::Entry> entries;
  uint64_t offset = 0;
  for (const WeightToWrite* weight : shard.weights) {
    const uint64_t bytes = BytesOf(*weight, dtype);
    entries.push_back({.name = weight->name,
                       .dtype = dtype,
                       .shape = weight->shape,
                       .begin = offset,
                       .end = offset + bytes});
    offset += bytes;
  }
  const std::string head = ckpt::safetensors::BuildHeader(entries, {{"format", "pt"}}, 8);
  Fd file = OpenFile(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, ExitCode::kEnvironment);
  WriteAll(file.get(), head.data(), head.size(), path, ExitCode::kEnvironment);
  for (const WeightToWrite* weight : shard.weights) WriteWeight(*weight, dtype, file.get(), path);
  Fsync(file.get(), path, ExitCode::kEnvironment);
  file.Close(path, ExitCode::kEnvironment);
}

}  // namespace

void WriteHfWeights(const fs::path& folder, const std::vector<WeightToWrite>& weights,
                    StoredDType dtype, uint64_t max_shard_bytes) {
  HL_CHECK(dtype == StoredDType::kF32 || dtype == StoredDType::kBF16, "cannot write weights as ",
           ckpt::Name(dtype));
  const std::vector<Shard> shards = Cut(weights, dtype, max_shard_bytes);
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  uint64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = ShardFileName(i, shards.size());
    WriteShard(shards[i], dtype, folder / name);
    total += shards[i].bytes;
    for (const WeightToWrite* weight : shards[i].weights) weight_map[weight->name] = name;
  }
  if (shards.size() == 1) return;
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}},
                                        {"weight_map", std::move(weight_map)}};
  AtomicWriteFile(folder / "model.safetensors.index.json", index.dump(2) + "\n",
                  ExitCode::kEnvironment);
}

}  // namespace halflife::interop
