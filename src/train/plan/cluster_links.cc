#include "train/plan/cluster_links.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json_text.h"
#include "core/nearest.h"

namespace halflife::train {
namespace {

using Json = nlohmann::ordered_json;

struct Amount {
  double Cluster::*field;
  double unit;
};
using Amounts = std::map<std::string, Amount>;

const std::map<std::string, Amounts>& Levels() {
  static const std::map<std::string, Amounts> levels = {
      {"node",
       {{"gbs", {&Cluster::nvlink_bytes_per_s, 1e9}},
        {"latency_us", {&Cluster::node_hop_s, 1e-6}}}},
      {"network",
       {{"gbs", {&Cluster::network_bytes_per_s, 1e9}},
        {"latency_us", {&Cluster::network_hop_s, 1e-6}}}},
      {"", {{"call_us", {&Cluster::base_s, 1e-6}}}}};
  return levels;
}

[[noreturn]] void FailOfKey(const std::string& file, const std::string& key,
                            const std::vector<std::string>& known) {
  HL_FAIL(ExitCode::kUsage, file, " has no key '", key, "'", DidYouMean(key, known), ". Use ",
          Join(known, ", "), ".");
}

// `level`: "" for the keys of the file itself.
void ReadAmount(const std::string& file, const std::string& level, const std::string& key,
                const Json& value, Cluster& cluster) {
  const Amounts& amounts = Levels().at(level);
  const std::string name = level.empty() ? key : Concat(level, ".", key);
  const auto found = amounts.find(key);
  if (found == amounts.end()) {
    std::vector<std::string> known;
    for (const auto& [of, amount] : amounts)
      known.push_back(level.empty() ? of : Concat(level, ".", of));
    if (level.empty()) known.insert(known.end(), {"node", "network"});
    FailOfKey(file, name, known);
  }
  HL_CHECK_AS(ExitCode::kUsage, value.is_number() && value.get<double>() > 0, file, ": ", name,
              " is ", value.dump(), ". Use a number above 0.");
  cluster.*found->second.field = found->second.unit * value.get<double>();
}

}  // namespace

void ReadLinks(const std::filesystem::path& file, Cluster& cluster) {
  const std::string name = file.string();
  std::error_code error;
  HL_CHECK_AS(ExitCode::kUsage, std::filesystem::is_regular_file(file, error),
              "--plan links=", name,
              ": there is no such file. Use a file like {\"node\": {\"gbs\": 370, "
              "\"latency_us\": 3}, \"network\": {\"gbs\": 44, \"latency_us\": 11}}.");
  const Json links = Json::parse(ReadJsonText(file), nullptr, /*allow_exceptions=*/false);
  HL_CHECK_AS(ExitCode::kUsage, links.is_object(), name,
              " is not a JSON object. Use {\"node\": {...}, \"network\": {...}}.");
  for (const auto& [key, value] : links.items()) {
    if (key.empty() || !Levels().contains(key)) {
      ReadAmount(name, "", key, value, cluster);
      continue;
    }
    HL_CHECK_AS(ExitCode::kUsage, value.is_object(), name, ": ", key, " is ", value.dump(),
                ". Use {\"gbs\": NUMBER, \"latency_us\": NUMBER}.");
    for (const auto& [of_level, number] : value.items())
      ReadAmount(name, key, of_level, number, cluster);
  }
}

}  // namespace halflife::train
