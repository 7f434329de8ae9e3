// How one Hugging Face model class stores the models that it can express: its name, its keys in
// config.json and its tensor names. Each class has a Layout in layouts/ and one line in
// layouts.inc. A parameter of halflife is a tensor of the class under another name, or a part of
// such a tensor (PlacementOf).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "interop/config_reader.h"
#include "interop/placement.h"
#include "model/config/model_config.h"

namespace halflife::interop {

class Layout {
 public:
  virtual ~Layout() = default;
  virtual std::string model_type() const = 0;  // model_type of config.json.
  virtual std::string class_name() const = 0;  // Entry of `architectures` in config.json.
  // False for layouts of authors' own checkpoints, which can only be imported, by name.
  virtual bool exports() const { return true; }
  virtual std::string mixer() const = 0;  // halflife's name of the mixer.
  // The config key of the maximum number of positions, which is used as the length of training
  // rows, and its default.
  struct PositionsKey {
    const char* name = "max_position_embeddings";
    int64_t usual = 2048;
  };
  virtual PositionsKey positions_key() const { return {}; }

  // Returns one line for each part of `config` that the class cannot express. Empty if it can
  // express the whole model. `config` is resolved, here and in WriteConfig.
  virtual std::vector<std::string> Obstacles(const model::ModelConfig& config) const = 0;
  // Adds the class's keys to `json`.
  virtual void WriteConfig(const model::ModelConfig& config,
                           nlohmann::ordered_json& json) const = 0;
  // Reads all keys of the class, including the common ones. Problems are collected in the reader.
  virtual model::ModelConfig ReadConfig(ConfigReader& reader) const = 0;
  // Returns the class's name of a halflife parameter. `reader` is null for export; for import, it
  // holds the folder's config, whose options may change names.
  virtual std::string TensorName(const std::string& parameter, ConfigReader* reader) const = 0;
  // Returns where the parameter is in that tensor. `reader` is as for TensorName.
  virtual Placement PlacementOf(const std::string& parameter, ConfigReader* reader) const;
  // A prefix that old folders omit from all names. Empty: none.
  virtual std::string OptionalPrefix() const;
  // True for tensors that folders may contain but that hold no weights.
  virtual bool IsBuffer(const std::string& tensor, ConfigReader& reader) const;
  // Returns the values that such a tensor must have to match the folder's config. Empty: its values
  // are not checked.
  virtual std::vector<float> BufferValues(const std::string& tensor, ConfigReader& reader) const;
  // True for parameters that the class declares but never uses. Called only for tensors from which
  // no parameter of the model is read. Import skips and reports them.
  virtual bool IsUnused(const std::string& tensor) const;
  // Returns the tensor of which this one is a copy in the class, if a folder may contain both.
  // Empty: none.
  virtual std::string CopyOf(const std::string& tensor) const;
  // Returns tensors that the class requires although `config` has no such parameter. They are
  // written as zeros.
  virtual std::vector<dist::ParamSpec> ZeroTensors(const model::ModelConfig& config) const;
};

// Base of layouts that can only be imported: checkpoints in authors' own formats.
class ImportOnlyLayout : public Layout {
 public:
  bool exports() const final { return false; }
  std::vector<std::string> Obstacles(const model::ModelConfig&) const final { return {}; }
  void WriteConfig(const model::ModelConfig&, nlohmann::ordered_json&) const final {}
};

const std::vector<const Layout*>& Layouts();
// Finds a layout by a folder's model_type, or by the name given to import. Throws kData for an
// unknown name and lists the known ones.
const Layout& LayoutOf(const std::string& model_type, const std::string& where);
// Returns the first layout that has the model's mixer and no obstacle. `model_type` restricts the
// choice unless it is empty or "auto". Throws kUsage with every obstacle of every candidate.
const Layout& ChooseLayout(const model::ModelConfig& config, const std::string& model_type);

}  // namespace halflife::interop
