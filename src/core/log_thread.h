// Logging for processes whose ranks are threads.
#pragma once

namespace halflife::log {

// Attributes all further messages of this thread to `rank`. Ranks other than 0 log only warnings
// and errors, prefixed with their rank. All ranks of the process share one log file.
void SpeakAsRank(int rank);
int RankOfThisThread();  // 0 unless SpeakAsRank was called on this thread

}  // namespace halflife::log
