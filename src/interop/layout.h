// Reads config.json, and describes how one Hugging Face model class stores the models that it can
// express: its name, its keys in config.json and its tensor names. Each class has a Layout in
// layouts/ and one line in layouts.inc. A parameter of halflife is a tensor of the class under
// another name, or a part of such a tensor (PlacementOf).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/concat.h"
#include "model/config/model_config.h"

namespace halflife::interop {

// Where a halflife parameter is located in a tensor of another program. The parameter is the
// tensor, or its transpose, or one of several parameters of the same shape that are stacked in it,
// or some of its rows, possibly reordered. Ranges of one are read from the other with a few MiB of
// memory.
struct Placement {
  bool transposed = false;  // The tensor is a matrix [in, out].
  // The tensor stacks `num_parts` parameters along their outermost dimension (the innermost one of
  // a transposed tensor). This parameter is number `part`, from 0.
  int64_t part = 0, num_parts = 1;
  // The tensor has this many dimensions of size 1 before and after those of the parameter.
  int64_t leading_ones = 0, trailing_ones = 0;
  // The tensor consists of `num_groups` groups of `num_rows` rows (0: as many rows as the
  // parameter). The parameter's rows are divided evenly among the groups, and are in each of them
  // the rows from `first_row` on.
  int64_t first_row = 0, num_rows = 0, num_groups = 1;
  // The number of rows of a head if the other program rotates neighbouring rows: its rows 2i and 2i
  // + 1 are rows i and i + pair_rows/2 of the parameter's head. 0: rows have the same order. Import
  // only: no exported class needs it.
  int64_t pair_rows = 0;
};

// Reads elements [begin, end) of a flattened tensor into `out`.
using RangeReader = std::function<void(int64_t begin, int64_t end, float* out)>;

// `shape` is the parameter's, outermost first, here and below. Returns the shape of the tensor.
std::vector<int64_t> TensorShape(const Placement& placement, std::vector<int64_t> shape);
// Reads the parameter from the other program's `tensor`.
RangeReader ParameterReader(const Placement& placement, const std::vector<int64_t>& shape,
                            RangeReader tensor);
// Reads the other program's tensor from all of its `parts`, in order. For a transposed tensor, the
// parts are read again for every requested range, so wide ranges are cheaper.
RangeReader TensorReader(const Placement& placement, const std::vector<int64_t>& shape,
                         std::vector<RangeReader> parts);
// A parameter that is some rows of a tensor.
struct RowsOfTensor {
  Placement placement;
  std::vector<int64_t> shape;  // of the parameter
  RangeReader read;
};
// Reads the other program's tensor from the parameters that are its rows. Together they must cover
// the rows of a group once. `name` is the tensor's, for messages.
RangeReader TensorOfRows(const std::string& name, std::vector<RowsOfTensor> parameters);

// Reads a config.json that another program wrote: typed values, with that program's defaults for
// absent or null keys. Collects all problems, and reports keys that were never read.
class ConfigReader {
 public:
  // Borrows `json`, which must be an object. Every message starts with `where`.
  ConfigReader(const nlohmann::json& json, std::string where);

  bool Has(const std::string& key);     // True if the key is present and not null.
  bool IsNull(const std::string& key);  // True if the key is present and null.
  int64_t Int(const std::string& key, int64_t absent, int64_t min = 1);  // 64.0 is 64.
  double Double(const std::string& key, double absent);
  bool Bool(const std::string& key, bool absent);  // null is false, as in Python
  std::string String(const std::string& key, const std::string& absent);
  // Returns the member, or null if it is absent or null. The caller checks its type.
  const nlohmann::json* Member(const std::string& key);
  // Marks keys that have no meaning here, regardless of their values.
  void Ignore(std::initializer_list<const char*> keys);
  // Marks the keys of the object `defaults`, if the config has them with the same value or null.
  // Check reports such a key if it has another value.
  void IgnoreDefaults(const nlohmann::json& defaults);

  // Adds the problems and the unknown keys of `inner`, which reads a member that is an object. Its
  // `where` is the key of that member.
  void Absorb(const ConfigReader& inner);

  template <typename... Pieces>
  void Require(bool condition, const Pieces&... pieces) {
    if (!condition) problems_.push_back(Concat(pieces...));
  }
  const std::string& where() const { return where_; }

  // Call after the last read. Throws kData with one line per problem, and logs a warning that names
  // the unknown keys.
  void Check() const;

 private:
  const nlohmann::json* Find(const std::string& key);
  std::vector<std::string> UnknownKeys() const;
  const nlohmann::json& json_;
  std::string where_;
  std::set<std::string> known_;
  std::vector<std::string> problems_, unknown_inside_;
};

class Layout {
 public:
  virtual ~Layout() = default;
  // The line of the layout in layouts.inc.
  struct Names {
    std::string model_type;  // model_type of config.json.
    std::string class_name;  // Entry of `architectures` in config.json.
    std::string mixer;       // halflife's name of the mixer.
    // False: the layout is for authors' own checkpoints, which can only be imported, by name.
    bool exports = true;
  };
  void SetNames(Names names) { names_ = std::move(names); }
  const std::string& model_type() const { return names_.model_type; }
  const std::string& class_name() const { return names_.class_name; }
  const std::string& mixer() const { return names_.mixer; }
  bool exports() const { return names_.exports; }
  // The config key of the maximum number of positions, which is used as the length of training
  // rows, and its default.
  struct PositionsKey {
    const char* name = "max_position_embeddings";
    int64_t usual = 2048;
    const char* other_name = nullptr;  // Read if the folder lacks `name`. Null: none.
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
  // holds the folder's config, whose options may change names. By default, the same name.
  virtual std::string TensorName(const std::string& parameter, ConfigReader* reader) const;
  // Returns where the parameter is in that tensor. `reader` is as for TensorName.
  virtual Placement PlacementOf(const std::string& parameter, ConfigReader* reader) const;
  struct TensorPlace {
    std::string name;
    Placement placement;
  };
  // Returns both for a parameter of the model `config`. Override it instead of the two functions
  // if names or places depend on the model's layers or sizes.
  virtual TensorPlace PlaceOf(const model::ModelConfig& config, const std::string& parameter,
                              ConfigReader* reader) const;
  // False: the class has no tied embeddings, so the head of a tied model is written as a separate
  // tensor.
  virtual bool can_tie() const { return true; }
  // Returns the names under which other programs store the tensor, in order of preference.
  virtual std::vector<std::string> OtherNames(const std::string& tensor) const;
  // Returns the tensors whose rows, one tensor after the other, are those of `tensor`. Import only.
  // Empty: it is stored as one.
  virtual std::vector<std::string> PiecesOf(const std::string& tensor) const;
  // Returns the member of config.json that describes the model, such as "text_config" in folders of
  // models that also see images. Empty: config.json itself.
  virtual std::string config_member() const { return {}; }
  // Returns the prefix that old folders, and folders of the class without a head, omit from all
  // names.
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
  // True: transformers fails with a cache for a model of the class without attention layers.
  virtual bool needs_attention_to_cache() const { return false; }
  // False: AutoTokenizer cannot load ByT5Tokenizer, the default form of `bytes`, from a folder of
  // the class. `bytes` is then written as tokenizer.json.
  virtual bool loads_byt5() const { return true; }
  // Returns what a reader of an exported tokenizer must know about the class. Empty: nothing.
  virtual std::string TokenizerWarning() const;

 private:
  Names names_;
};

// Base of layouts that can only be imported: checkpoints in authors' own formats.
class ImportOnlyLayout : public Layout {
 public:
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
