// Reads a config.json that another program wrote: typed values, with that program's defaults for
// absent or null keys. Collects all problems, and reports keys that were never read.
//
//   ConfigReader reader(json, folder / "config.json");
//   const int64_t heads = reader.Int("num_heads", 4);
//   reader.Require(heads % 2 == 0, "num_heads is ", heads, ". Use an even number.");
//   reader.Check();
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/concat.h"

namespace halflife::interop {

class ConfigReader {
 public:
  // Borrows `json`, which must be an object. Every message starts with `where`.
  ConfigReader(const nlohmann::json& json, std::string where);

  bool Has(const std::string& key);  // True if the key is present and not null.
  int64_t Int(const std::string& key, int64_t absent, int64_t min = 1);
  double Double(const std::string& key, double absent);
  bool Bool(const std::string& key, bool absent);
  std::string String(const std::string& key, const std::string& absent);
  // Returns the member, or null if it is absent or null. The caller checks its type.
  const nlohmann::json* Member(const std::string& key);
  // Marks keys that have no meaning here, regardless of their values.
  void Ignore(std::initializer_list<const char*> keys);
  // Marks the keys of the object `defaults`, if the config has them with the same value or null.
  // Check reports such a key if it has another value.
  void IgnoreDefaults(const nlohmann::json& defaults);

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
  const nlohmann::json& json_;
  std::string where_;
  std::set<std::string> known_;
  std::vector<std::string> problems_;
};

}  // namespace halflife::interop
