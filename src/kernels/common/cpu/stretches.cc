#include "kernels/common/cpu/stretches.h"

#include <omp.h>

namespace halflife::kernels::cpu {

SideBySide::SideBySide(const Pieces& pieces, int stretch_chunks, bool worth)
    : pieces_(pieces), stretch_chunks_(stretch_chunks) {
  const int64_t threads = std::max(1, omp_get_max_threads());
  for (int heads = pieces.num_heads; worth && heads > 1 && together_ == 1; --heads) {
    const int64_t groups = pieces.num_pieces / heads;
    if (pieces.num_heads % heads == 0 && (groups % threads == 0 || groups >= 8 * threads))
      together_ = heads;
  }
  if (together_ == 1) stretch_chunks_ = kNoStretches;
}

int64_t SideBySide::Piece(int64_t group, int i) const {
  return (group / pieces_.kinds * together_ + i) * pieces_.kinds + group % pieces_.kinds;
}

std::vector<Stretch> SideBySide::Stretches(int begin, int end, bool descending) const {
  std::vector<Stretch> stretches;
  int at = begin;
  do {
    const int stretch_end = end - at > stretch_chunks_ ? at + stretch_chunks_ : end;
    stretches.push_back({.begin = at, .end = stretch_end, .first = false, .last = false});
    at = stretch_end;
  } while (at < end);
  if (descending) std::reverse(stretches.begin(), stretches.end());
  stretches.front().first = stretches.back().last = true;
  return stretches;
}

}  // namespace halflife::kernels::cpu
