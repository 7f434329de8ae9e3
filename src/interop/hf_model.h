// The model of a Hugging Face folder and its weights, under halflife's names.
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
  // Checks the whole folder. Throws kData with a list of all tensors that are missing, unexpected
  // or of another shape. If the config says tied but the head has different values, the model is
  // read as untied, with a warning. `layout` overrides the folder's model_type unless it is empty.
  static HfModel Open(const std::filesystem::path& folder, const std::string& layout = "");

  const model::ModelConfig& config() const { return config_; }
  const Layout& layout() const { return *layout_; }
  int64_t max_positions() const { return max_positions_; }
  const HfFolder& folder() const { return folder_; }
  // Tensors that the class declares but never uses. No weights are read from them.
  const std::vector<std::string>& unused() const { return unused_; }

  std::string where() const override { return folder_.path().string(); }
  const std::vector<ckpt::WeightInfo>& weights() const override { return weights_; }
  void ReadRange(const std::string& name, int64_t begin, int64_t end, float* out) const override;

 private:
  struct Stored {
    std::vector<const HfTensor*> pieces;  // The tensor, or the tensors that have its rows in turn.
    Placement placement;
    std::vector<int64_t> shape;  // Shape of the parameter.
  };
  explicit HfModel(HfFolder folder) : folder_(std::move(folder)) {}
  void Match(ConfigReader& reader);
  // Returns the name that a tensor has in this folder.
  std::string StoredName(const std::string& name) const;
  // Returns the names of the tensors of this folder that together are a tensor of the class.
  std::vector<std::string> StoredPieces(const std::string& name) const;
  // Reads elements of a tensor that is stored in pieces.
  void ReadPieces(const std::vector<const HfTensor*>& pieces, int64_t begin, int64_t end,
                  float* out) const;
  // Returns true if two tensors of the folder have equal values.
  bool AreEqual(const std::string& one, const std::string& other) const;
  // Describes how a buffer differs from the values that the config implies. Empty if it does not
  // differ.
  std::string BufferProblem(const HfTensor& tensor, const std::string& name,
                            ConfigReader& reader) const;

  HfFolder folder_;
  const Layout* layout_ = nullptr;
  model::ModelConfig config_;
  int64_t max_positions_ = 0;
  std::vector<ckpt::WeightInfo> weights_;
  std::map<std::string, Stored> stored_;  // By halflife's name.
  std::vector<std::string> unused_;
};

struct ImportReport {
  int64_t num_parameters = 0;
  bool has_tokenizer = false;
};

// Imports a Hugging Face folder as a run of halflife: step 0 without optimizer state, the
// tokenizer, and a recipe that contains the model. `eval`, `score` and `generate` can use the run
// at once; `train --config RUN/config.textproto` continues from it. Writes the run `run`, which
// must not exist; it is published by one rename. `run_config_text` becomes its config.textproto.
// Needs memory for a few blocks. Throws kUsage if `run` exists, kData if the folder is not valid,
// and kCheckpointIo.
ImportReport ImportModel(const HfModel& model, const std::string& run_config_text,
                         const std::filesystem::path& run);

}  // namespace halflife::interop
