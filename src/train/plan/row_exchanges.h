// What the ranks that share rows send each other in a layer, learnt from the layer's own mixer: it
// runs forward and backward on a few tokens of zeros, in a group that moves nothing
// (dist/rehearsal.h), and its messages are scaled to the rows of a job. They are linear in the
// number of rows; in the length of a slice they are constant or linear, which two lengths settle.
//
//   RowRehearsals rehearsals(config, /*sp_index=*/1, cost);
//   const RowExchanges& layer = rehearsals.OfLayer(model, 3);
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dist/rehearsal.h"
#include "ops/sequence/exchange_cost.h"
#include "train/config/run_config.h"

namespace halflife::train {

// The exchanges of one layer and one micro-batch, on one rank.
struct RowExchanges {
  std::vector<dist::RehearsedOperation> operations = {};
  // In the order of the program; values are indices into `operations`.
  std::vector<dist::RehearsedEvent> forward = {}, backward = {};
  // How many tokens before a slice its mixer asks for, whichever are there.
  std::set<int64_t> reaches = {};
};

class RowRehearsals {
 public:
  // Rehearses for the rank with this slice of its rows, under the config's parallel.sp, exchange,
  // train.micro_batch, train.precision and data.seq_len. `cost`: what decides between strategies
  // where parallel.exchange is auto; a run measures it.
  RowRehearsals(const RunConfig& config, int sp_index, const ops::ExchangeCost& cost);

  // Error kUsage where the layer's mixer cannot have a row on several ranks. Kept for mixers alike.
  const RowExchanges& OfLayer(const model::LanguageModel& model, int64_t layer);

 private:
  int Threads(int64_t batch) const;
  // `lengths`: of a row's slices, by rank.
  RowExchanges Rehearse(int64_t layer, int64_t batch, const std::vector<int64_t>& lengths) const;
  RowExchanges AtJobsLength(int64_t layer, int64_t batch) const;

  const RunConfig config_;
  const int sp_index_;
  const ops::ExchangeCost cost_;
  std::map<std::string, RowExchanges> layers_;  // by the mixer with its options and state
};

}  // namespace halflife::train
