// A folder with a config.json and safetensors files, as `transformers` saves a model. Its contents
// are not trusted: all sizes, offsets and names are checked before use, and no code in it is run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ckpt/safetensors.h"
#include "core/files.h"

namespace halflife::interop {

// The problem of a config.json with quantization_config.
inline constexpr char kQuantizedWeights[] =
    "quantization_config is set, so the weights are quantized. Use a folder of the same model with "
    "weights in fp32, bf16 or fp16.";

struct HfTensor {
  std::string name;
  ckpt::StoredDType dtype = ckpt::StoredDType::kF32;
  std::vector<int64_t> shape;  // outermost first
  int file = 0;
  uint64_t offset = 0;  // Offset of the first element in the file.
  int64_t count() const { return ckpt::CountElements(shape); }
};

class HfFolder {
 public:
  static bool IsOne(const std::filesystem::path& path);  // True if `path` contains a config.json.
  // Throws kData if there is no such folder, if files are damaged or contradict each other, if file
  // names leave the folder, or if the weights are pickled.
  static HfFolder Open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const nlohmann::json& config() const { return *config_; }
  const std::map<std::string, HfTensor>& tensors() const { return tensors_; }
  const HfTensor* Find(const std::string& name) const;  // Null if there is no such tensor.

  // Reads elements [begin, end) of the flattened tensor as fp32, to which fp64 is rounded. Throws
  // kData for a type that is not supported for weights. Thread-safe.
  void Read(const HfTensor& tensor, int64_t begin, int64_t end, float* out) const;

 private:
  void AddFile(const std::string& name);
  void ReadIndex(const std::filesystem::path& index);

  std::filesystem::path path_;
  std::shared_ptr<const nlohmann::json> config_;
  std::vector<std::string> file_names_;
  std::vector<Fd> files_;
  std::map<std::string, HfTensor> tensors_;
};

}  // namespace halflife::interop
