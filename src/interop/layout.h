// How one Hugging Face model class writes the models that it can express: its name, its keys of
// config.json, its names of tensors. One file a class in layouts/, one line in layouts.inc. A
// parameter of halflife's is a tensor of theirs under another name, or lies in one as PlacementOf
// says.
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
  virtual std::string model_type() const = 0;  // of config.json
  virtual std::string class_name() const = 0;  // its `architectures`
  // False: a layout of authors' own checkpoints, which import takes when asked for it by name.
  virtual bool exports() const { return true; }
  virtual std::string mixer() const = 0;  // halflife's name of the mixer it is for
  // The key of the most positions, which stand for the rows that a model was trained on, and what a
  // config without it means.
  struct PositionsKey {
    const char* name = "max_position_embeddings";
    int64_t usual = 2048;
  };
  virtual PositionsKey positions_key() const { return {}; }

  // One line for each part of `config` that the class has no word for; empty: it expresses all of
  // it.
  // `config` is resolved, here and in the next.
  virtual std::vector<std::string> Obstacles(const model::ModelConfig& config) const = 0;
  // Adds the class's keys.
  virtual void WriteConfig(const model::ModelConfig& config,
                           nlohmann::ordered_json& json) const = 0;
  // All keys of the class and the common frame; problems stay in the reader.
  virtual model::ModelConfig ReadConfig(ConfigReader& reader) const = 0;
  // The class's name of a parameter of ours. `reader`: null for what export writes, else the config
  // of a folder whose options may change names.
  virtual std::string TensorName(const std::string& parameter, ConfigReader* reader) const = 0;
  // Where in that tensor the parameter lies. `reader` as above.
  virtual Placement PlacementOf(const std::string& parameter, ConfigReader* reader) const;
  // What old folders leave out before every name; empty: nothing.
  virtual std::string OptionalPrefix() const;
  // Tensors that folders may hold and that carry no weights.
  virtual bool IsBuffer(const std::string& tensor, ConfigReader& reader) const;
  // The values that such a tensor has where the folder's config is right; empty: they are not
  // compared.
  virtual std::vector<float> BufferValues(const std::string& tensor, ConfigReader& reader) const;
  // Parameters that the class declares and never uses, asked only for tensors that no parameter of
  // the model is read from. They are left out, and import reports them.
  virtual bool IsUnused(const std::string& tensor) const;
  // The tensor whose values the class holds under this name, too, and a folder may; empty: none.
  virtual std::string CopyOf(const std::string& tensor) const;
  // Tensors that the class demands where `config` has no such parameter: all zeros.
  virtual std::vector<dist::ParamSpec> ZeroTensors(const model::ModelConfig& config) const;
};

// Of checkpoints of authors' own, which nothing is written as.
class ImportOnlyLayout : public Layout {
 public:
  bool exports() const final { return false; }
  std::vector<std::string> Obstacles(const model::ModelConfig&) const final { return {}; }
  void WriteConfig(const model::ModelConfig&, nlohmann::ordered_json&) const final {}
};

const std::vector<const Layout*>& Layouts();
// Of a folder's own model_type, or of the name that import was given. Error kData for one that is
// not known: lists the known ones.
const Layout& LayoutOf(const std::string& model_type, const std::string& where);
// The first that has the mixer and no obstacle; `model_type` empty or "auto": any. Error kUsage
// with every obstacle of every candidate.
const Layout& ChooseLayout(const model::ModelConfig& config, const std::string& model_type);

}  // namespace halflife::interop
