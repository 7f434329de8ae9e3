// Which texts are held out and trained on as well, by their content: a score on them says little of
// other text. What is held out comes first.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "core/hash.h"
#include "data/dataset.h"

namespace halflife::data {

class HeldOutContents {
 public:
  void Add(Split split, Hash128 content) {
    if (split != Split::kTrain) {
      ++count_[content.lo];
    } else if (const auto found = count_.find(content.lo); found != count_.end()) {
      num_in_train_ += found->second;
      count_.erase(found);
    }
  }
  // Texts of the other splits that training repeats, each counted once.
  int64_t num_in_train() const { return num_in_train_; }

 private:
  std::unordered_map<uint64_t, int64_t> count_;  // of those that training has not repeated so far
  int64_t num_in_train_ = 0;
};

}  // namespace halflife::data
