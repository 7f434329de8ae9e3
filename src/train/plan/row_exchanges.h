// The messages between ranks that share rows in a layer. They are determined by running the layer's
// mixer forward and backward on a few tokens of zeros, in a group that moves no data
// (dist/rehearsal.h). Its messages are then scaled to the rows of a job. They are linear in the
// number of rows. In the length of a slice they are constant or linear, which two lengths
// determine.
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
  // In program order. Values are indices into `operations`.
  std::vector<dist::RehearsedEvent> forward = {}, backward = {};
  // The numbers of tokens before a slice that its mixer requests.
  std::set<int64_t> reaches = {};
};

class RowRehearsals {
 public:
  // Rehearses for the rank with this slice of its rows, with the config's parallel.sp, exchange,
  // train.micro_batch, train.precision and data.seq_len. `cost` decides between strategies if
  // parallel.exchange is auto. (A run measures it.)
  RowRehearsals(const RunConfig& config, int sp_index, const ops::ExchangeCost& cost);

  // Throws Error kUsage if the layer's mixer cannot split a row over ranks. The result is cached
  // for equal mixers.
  const RowExchanges& OfLayer(const model::LanguageModel& model, int64_t layer);

 private:
  int Threads(int64_t batch) const;
  // `lengths`: lengths of the slices of a row, by rank.
  RowExchanges Rehearse(int64_t layer, int64_t batch, const std::vector<int64_t>& lengths) const;
  RowExchanges AtJobsLength(int64_t layer, int64_t batch) const;

  const RunConfig config_;
  const int sp_index_;
  const ops::ExchangeCost cost_;
  std::map<std::string, RowExchanges> layers_;  // Key: the mixer with its options and state.
};

}  // namespace halflife::train
