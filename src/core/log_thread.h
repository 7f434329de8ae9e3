// Logging where the ranks of a world are threads of one process.
#pragma once

namespace halflife::log {

// What this thread says from now on is rank `rank`'s: of others than rank 0 warnings and errors
// alone, with the rank's number before them. The log file is one for all.
void SpeakAsRank(int rank);
int RankOfThisThread();  // 0 unless it was told

}  // namespace halflife::log
