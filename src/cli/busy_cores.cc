#include "cli/busy_cores.h"

#include "cli/doctor/checks.h"
#include "core/host.h"
#include "core/human.h"
#include "core/log.h"

namespace halflife::cli {

void WarnOfBusyCores(dist::RankContext& context) {
  for (const doctor::Finding& finding : doctor::CheckRankPlaces(doctor::Scene{}, context)) {
    const bool knows_cores = finding.values.at("cores") > 0;
    if (finding.verdict == doctor::Verdict::kOk || !knows_cores) continue;
    HL_WARN("threads", "ranks: ", finding.text,
            ". They slow each other down. Use fewer ranks, or fewer threads for each.");
    return;
  }
}

void WarnOfBusyCores(int threads) {
  const int cores = NumUsableCores();
  if (threads <= cores) return;
  HL_WARN("threads", "--threads ", threads, " is more than the ", Counted(cores, "core"),
          " that this process may use. Use --threads ", cores, ".");
}

}  // namespace halflife::cli
