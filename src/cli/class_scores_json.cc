#include "cli/class_scores_json.h"

#include <nlohmann/json.hpp>

namespace halflife::cli {

nlohmann::ordered_json ClassScoresJson(const eval::ClassScores& scores) {
  nlohmann::ordered_json out = {
      {"documents", scores.num_documents}, {"mcc", scores.mcc}, {"f1_macro", scores.f1_macro}};
  if (scores.f1) out["f1"] = *scores.f1;
  if (scores.auroc) out["auroc"] = *scores.auroc;
  out["confusion"] = scores.confusion;
  return out;
}

}  // namespace halflife::cli
