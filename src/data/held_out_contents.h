// Counts texts that are both held out and trained on, by their content, because a score on them
// does not measure generalization. Add all held-out texts first.
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
  // The number of held-out texts that also occur in the training split. Each is counted once.
  int64_t num_in_train() const { return num_in_train_; }

 private:
  // held-out texts that training has not repeated so far.
  std::unordered_map<uint64_t, int64_t> count_;
  int64_t num_in_train_ = 0;
};

}  // namespace halflife::data
