// Writes a small folder in the format of transformers: two shards with an index, or one file.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ckpt/safetensors.h"

namespace halflife::test {

inline void WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Returns fp32 tensors of shape [2, 3] that count up from 1, 7, ...
inline std::string SafetensorsBytes(const std::vector<std::string>& names) {
  std::vector<ckpt::safetensors::Entry> entries;
  std::vector<float> values;
  for (const std::string& name : names) {
    const uint64_t begin = values.size() * sizeof(float);
    entries.push_back({.name = name, .shape = {2, 3}, .begin = begin, .end = begin + 24});
    for (int i = 0; i < 6; ++i) values.push_back(static_cast<float>(values.size() + 1));
  }
  std::string bytes = ckpt::safetensors::BuildHeader(entries, {{"format", "pt"}}, 8);
  return bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

inline void WriteShardedFolder(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  WriteText(folder / "config.json", R"({"model_type": "llama", "vocab_size": 3})");
  WriteText(folder / "model-00001-of-00002.safetensors", SafetensorsBytes({"a", "b"}));
  WriteText(folder / "model-00002-of-00002.safetensors", SafetensorsBytes({"c"}));
  WriteText(
      folder / "model.safetensors.index.json",
      R"({"metadata": {"total_size": 72}, "weight_map": {"a": "model-00001-of-00002.safetensors",)"
      R"( "b": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}})");
}

}  // namespace halflife::test
