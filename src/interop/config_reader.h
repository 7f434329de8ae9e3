// Reads a config.json that another program wrote: typed, with that program's defaults for absent or
// null keys. Collects everything that is wrong, and reports keys that nobody asked for by name.
//
//   ConfigReader reader(json, folder / "config.json");
//   const int64_t heads = reader.Int("num_heads", 4);
//   reader.Require(heads % 2 == 0, "num_heads is ", heads, "; an even number would work");
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
  // Borrows `json`, which must be an object. `where` opens every message.
  ConfigReader(const nlohmann::json& json, std::string where);

  bool Has(const std::string& key);  // present and not null
  int64_t Int(const std::string& key, int64_t absent, int64_t min = 1);
  double Double(const std::string& key, double absent);
  bool Bool(const std::string& key, bool absent);
  std::string String(const std::string& key, const std::string& absent);
  // The member, or null; the caller judges it.
  const nlohmann::json* Member(const std::string& key);
  // Keys that have no meaning here, whatever their values.
  void Ignore(std::initializer_list<const char*> keys);
  // Keys of `defaults`, an object, at the values that they have there, or null. Check reports such
  // a key that has another value.
  void IgnoreDefaults(const nlohmann::json& defaults);

  template <typename... Pieces>
  void Require(bool condition, const Pieces&... pieces) {
    if (!condition) problems_.push_back(Concat(pieces...));
  }
  const std::string& where() const { return where_; }

  // After the last read: Error kData with one line per problem; a warning that names the unknown
  // keys.
  void Check() const;

 private:
  const nlohmann::json* Find(const std::string& key);
  const nlohmann::json& json_;
  std::string where_;
  std::set<std::string> known_;
  std::vector<std::string> problems_;
};

}  // namespace halflife::interop
