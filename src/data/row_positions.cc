#include "data/row_positions.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace halflife::data {
namespace {

// Chooses `count` of the numbers [0, size) in ascending order by selection sampling (Knuth, 3.4.2,
// algorithm S). Uses one random word per number.
std::vector<int64_t> Subset(int64_t count, int64_t size, RandomWords& words, uint32_t first_word) {
  std::vector<int64_t> chosen;
  for (int64_t number = 0; std::ssize(chosen) < count; ++number)
    if (words.Below(first_word + static_cast<uint32_t>(number), size - number) <
        count - std::ssize(chosen))
      chosen.push_back(number);
  return chosen;
}

// Splits the document at uniformly drawn positions into chunks of at least one token. The
// cumulative skips before the second and later chunks are a sorted draw from [0, length -
// num_tokens].
std::vector<int64_t> Skipwise(const RowPositionsConfig& config, int64_t num_tokens,
                              RandomWords& words) {
  const int64_t cuts = std::min(config.chunks, num_tokens) - 1;
  std::vector<int64_t> skips;
  for (int64_t i = 0; i < cuts; ++i)
    skips.push_back(words.Below(static_cast<uint32_t>(i), config.length - num_tokens + 1));
  std::ranges::sort(skips);
  const std::vector<int64_t> begins =
      Subset(cuts, num_tokens - 1, words, static_cast<uint32_t>(cuts));
  std::vector<int64_t> positions(static_cast<size_t>(num_tokens));
  std::iota(positions.begin(), positions.end(), 0);
  for (int64_t i = 0; i < cuts; ++i) {
    const int64_t begin = begins[static_cast<size_t>(i)] + 1;
    const int64_t end = i + 1 < cuts ? begins[static_cast<size_t>(i + 1)] + 1 : num_tokens;
    for (int64_t t = begin; t < end; ++t)
      positions[static_cast<size_t>(t)] += skips[static_cast<size_t>(i)];
  }
  return positions;
}

struct Kind {
  const char* name;
  std::vector<int64_t> (*draw)(const RowPositionsConfig&, int64_t num_tokens, RandomWords& words);
};
constexpr Kind kKinds[] = {
    {"plain",
     [](const RowPositionsConfig&, int64_t num_tokens, RandomWords&) {
       std::vector<int64_t> positions(static_cast<size_t>(num_tokens));
       std::iota(positions.begin(), positions.end(), 0);
       return positions;
     }},
    {"skipwise", Skipwise},
    {"randomised", [](const RowPositionsConfig& config, int64_t num_tokens, RandomWords& words) {
       return Subset(num_tokens, config.length, words, 0);
     }}};

}  // namespace

std::vector<int64_t> DrawPositions(const RowPositionsConfig& config, int64_t num_tokens,
                                   RandomWords words) {
  const Kind* const kind = std::ranges::find(kKinds, config.kind, &Kind::name);
  HL_CHECK(kind != std::end(kKinds) && (config.plain() || num_tokens <= config.length),
           "positions ", config.kind, " below ", config.length, " of ", num_tokens, " tokens");
  return kind->draw(config, num_tokens, words);
}

std::vector<int64_t> AssignPositionIds(const RowPositionsConfig& config, uint64_t seed,
                                       const Batch& batch) {
  std::vector<int64_t> ids;
  constexpr uint32_t kFirstStream = 32;  // lower streams belong to synthetic rows and to retrieval
  int64_t row = -1;
  uint32_t document = 0;
  for (size_t piece = 0; piece + 1 < batch.cu_seqlens.size(); ++piece) {
    const int64_t begin = batch.cu_seqlens[piece], end = batch.cu_seqlens[piece + 1];
    document = begin / batch.seq_len == row ? document + 1 : 0;
    row = begin / batch.seq_len;
    const uint64_t sample = batch.samples[static_cast<size_t>(row)];
    const RandomWords words(MakeRandomKey(seed, RandomPurpose::kSynthetic, kFirstStream + document),
                            sample);
    const std::vector<int64_t> positions =
        DrawPositions(sample == kNoSample ? RowPositionsConfig{} : config, end - begin, words);
    ids.insert(ids.end(), positions.begin(), positions.end());
  }
  return ids;
}

}  // namespace halflife::data
