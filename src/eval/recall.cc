#include "eval/recall.h"

#include <cstddef>
#include <unordered_set>

namespace halflife::eval {
namespace {

// The tokens and bigrams of a document so far.
class Said {
 public:
  void Add(int32_t token) {
    if (!tokens_.empty()) bigrams_.insert(Bigram(last_, token));
    tokens_.insert(token);
    last_ = token;
  }
  bool Has(int32_t token) const { return tokens_.contains(token); }
  bool HasAfterLast(int32_t token) const { return bigrams_.contains(Bigram(last_, token)); }

 private:
  static uint64_t Bigram(int32_t first, int32_t second) {
    return static_cast<uint64_t>(static_cast<uint32_t>(first)) << 32 |
           static_cast<uint32_t>(second);
  }
  std::unordered_set<int32_t> tokens_;
  std::unordered_set<uint64_t> bigrams_;
  int32_t last_ = 0;
};

}  // namespace

RecallFlags FindRecalled(const data::Batch& batch) {
  RecallFlags flags = {.token_seen = std::vector<uint8_t>(batch.targets.size()),
                       .bigram_seen = std::vector<uint8_t>(batch.targets.size())};
  for (size_t piece = 0; piece + 1 < batch.cu_seqlens.size(); ++piece) {
    Said said;
    const auto end = static_cast<size_t>(batch.cu_seqlens[piece + 1]);
    for (auto t = static_cast<size_t>(batch.cu_seqlens[piece]); t < end; ++t) {
      said.Add(batch.inputs[t]);
      if (batch.targets[t] < 0) continue;
      flags.token_seen[t] = said.Has(batch.targets[t]);
      flags.bigram_seen[t] = said.HasAfterLast(batch.targets[t]);
    }
  }
  return flags;
}

}  // namespace halflife::eval
