#include "core/versions.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/version.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "core/concat.h"

namespace halflife {
namespace {

// 10203 -> "1.2.3"
std::string Dotted(unsigned number) {
  return Concat(number / 10000, ".", number / 100 % 100, ".", number % 100);
}

}  // namespace

std::vector<LibraryVersion> CoreLibraries() {
  return {{"spdlog", Dotted(SPDLOG_VERSION), ""},
          {"fmt", Dotted(FMT_VERSION), ""},
          {"xxHash", Dotted(XXH_VERSION_NUMBER), Dotted(XXH_versionNumber())},
          {"nlohmann-json",
           Concat(NLOHMANN_JSON_VERSION_MAJOR, ".", NLOHMANN_JSON_VERSION_MINOR, ".",
                  NLOHMANN_JSON_VERSION_PATCH),
           ""}};
}

}  // namespace halflife
