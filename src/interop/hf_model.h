// The weights of a Hugging Face folder under halflife's names, with the model they belong to.
//
//   const HfModel model = HfModel::Open("exports/first");
//   model::LanguageModel(model.config());  model.ReadRange("norm.weight", 0, count, out);
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/weight_source.h"
#include "interop/hf_folder.h"
#include "interop/layout.h"

namespace halflife::interop {

class HfModel : public ckpt::WeightSource {
 public:
  // Checks all of it: Error kData lists every tensor that is missing, unexpected or of another
  // shape. A tied config with a head of its own values is read as untied, with a warning. `layout`:
  // in place of the folder's model_type; empty: that.
  static HfModel Open(const std::filesystem::path& folder, const std::string& layout = "");

  const model::ModelConfig& config() const { return config_; }
  const Layout& layout() const { return *layout_; }
  int64_t max_positions() const { return max_positions_; }
  const HfFolder& folder() const { return folder_; }
  // Tensors that the class declares and never uses. No weight is read from them.
  const std::vector<std::string>& unused() const { return unused_; }

  std::string where() const override { return folder_.path().string(); }
  const std::vector<ckpt::WeightInfo>& weights() const override { return weights_; }
  void ReadRange(const std::string& name, int64_t begin, int64_t end, float* out) const override;

 private:
  struct Stored {
    const HfTensor* tensor = nullptr;
    Placement placement;
    std::vector<int64_t> shape;  // of the parameter
  };
  explicit HfModel(HfFolder folder) : folder_(std::move(folder)) {}
  void Match(ConfigReader& reader);
  // The name that a tensor has in this folder.
  std::string StoredName(const std::string& name) const;
  bool AreEqual(const std::string& one, const std::string& other) const;  // tensors of the folder
  // How a buffer differs from the values that the config implies; empty: it does not.
  std::string BufferProblem(const HfTensor& tensor, const std::string& name,
                            ConfigReader& reader) const;

  HfFolder folder_;
  const Layout* layout_ = nullptr;
  model::ModelConfig config_;
  int64_t max_positions_ = 0;
  std::vector<ckpt::WeightInfo> weights_;
  std::map<std::string, Stored> stored_;  // by halflife's name
  std::vector<std::string> unused_;
};

}  // namespace halflife::interop
