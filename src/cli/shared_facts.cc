#include "cli/shared_facts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace halflife::cli {

void RequireAlike(dist::RankContext& context, const std::vector<SharedFact>& facts) {
  nlohmann::json own = nlohmann::json::array();
  for (const SharedFact& fact : facts) own.push_back({fact.value, fact.words});
  // A path may contain bytes that are not UTF-8.
  const std::string text = own.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::vector<nlohmann::json> ranks;
  for (const std::string& other :
       dist::AllGatherBytes(context.control(), text, {"shared_facts", 0})) {
    ranks.push_back(nlohmann::json::parse(other));
  }
  std::vector<std::string> differences;
  for (size_t i = 0; i < facts.size(); ++i) {
    const auto odd = std::find_if(ranks.begin(), ranks.end(), [&](const nlohmann::json& other) {
      return other[i][0] != ranks[0][i][0];
    });
    if (odd == ranks.end()) continue;
    differences.push_back(Concat(facts[i].name, " is ", ranks[0][i][1].get<std::string>(),
                                 " on rank 0, ", (*odd)[i][1].get<std::string>(), " on rank ",
                                 odd - ranks.begin()));
  }
  HL_CHECK_AS(ExitCode::kUsage, differences.empty(),
              "the ranks disagree: ", Join(differences, "; "), ". Give every rank the same.");
}

}  // namespace halflife::cli
