#include "train/plan/row_exchanges.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "core/error.h"
#include "model/blocks/block.h"
#include "model/mixer.h"
#include "model/sequence_parallel.h"
#include "train/step/shared_rows.h"

namespace halflife::train {
namespace {

constexpr int64_t kFewTokens = 8;  // Length of a slice.

// Only the mixer of one layer of the model, with weights of zeros in the dtypes of a run.
struct LoneMixer {
  model::ParameterSet parameters;
  std::unique_ptr<model::Mixer> mixer;

  LoneMixer(const RunConfig& config, int64_t layer, at::ScalarType compute) {
    mixer = model::MakeMixer(
        config.model.mixer_of(layer),
        {.sizes = config.model.sizes(), .layer = layer, .parameters = &parameters});
    for (int i = 0; i < parameters.size(); ++i) {
      const dist::ParamSpec& spec = parameters.specs()[i];
      const bool wide = spec.region == dist::Region::kFp32;
      parameters.Bind(i, at::zeros(spec.shape, wide ? at::kFloat : compute));
    }
  }
};

// Returns a key that is equal for mixers with equal exchanges: the same form and the same state
// (windows may depend on the layer).
std::string KeyOf(const model::LanguageModel& model, int64_t layer) {
  model::ModelConfig alone = model.config();
  alone.mixer = model.config().mixer_of(layer);
  alone.hybrid.clear();
  std::string key = model::ToJson(alone);
  for (const model::StateTensor& tensor : model.block(layer).mixer().traits().state)
    key += Concat(" ", tensor.name, " ", Join(tensor.shape, "x"));
  return key;
}

bool SameOperations(const RowExchanges& a, const RowExchanges& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.kind == y.kind && x.what == y.what && (x.bytes == 0) == (y.bytes == 0);
  };
  return std::ranges::equal(a.operations, b.operations, same);
}

}  // namespace

RowRehearsals::RowRehearsals(const RunConfig& config, int sp_index, const ops::ExchangeCost& cost)
    : config_(config), sp_index_(sp_index), cost_(cost) {}

// Returns the number of threads with which a scan of `batch` rows is cut into as many pieces as a
// scan of the job's rows.
int RowRehearsals::Threads(int64_t batch) const {
  if (config_.train.device == "cuda") return 0;
  const int64_t threads = std::max(config_.train.threads, 1), rows = config_.train.micro_batch;
  return static_cast<int>((threads * batch + rows - 1) / rows);
}

RowExchanges RowRehearsals::Rehearse(int64_t layer, int64_t batch,
                                     const std::vector<int64_t>& lengths) const {
  const at::ScalarType compute = config_.train.computes_in_bf16() ? at::kBFloat16 : at::kFloat;
  const LoneMixer alone(config_, layer, compute);
  dist::Rehearsal rehearsal;
  const auto comm = rehearsal.MakeGroup(sp_index_, config_.parallel.row_ranks(), "rows");
  // The messages of the job determine the strategy.
  const double rows = static_cast<double>(config_.train.micro_batch) / static_cast<double>(batch);
  ops::ExchangeCost cost = cost_;
  cost.gather_s_per_byte *= rows, cost.shift_s_per_byte *= rows;
  const model::SequenceParallel parallel = {.group = model::MakeSegmentGroup(*comm),
                                            .strategy = StrategyOf(config_.parallel.exchange),
                                            .cost = std::make_shared<const ops::ExchangeCost>(cost),
                                            .lengths = lengths,
                                            .threads = Threads(batch)};
  const int64_t seq_len = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const model::SequenceSlice slice =
      parallel.SliceOf(model::SequenceSlice::Contiguous(batch, seq_len, 0, at::kCPU));
  const at::Tensor x = at::zeros({slice.batch, slice.seq_len, config_.model.model_dim}, compute)
                           .requires_grad_(true);
  const at::Tensor y =
      alone.mixer
          ->Forward({.x = x,
                     .slice = slice,
                     .drop = [](uint32_t, const at::Tensor& z, double) { return z; },
                     .drop_within =
                         [&](uint32_t, double rate) {
                           return ops::DropoutConfig{.rate = rate,
                                                     .samples = at::arange(x.size(0), at::kLong),
                                                     .first_position = slice.begin};
                         },
                     .first_values = at::zeros(x.sizes(), compute)})
          .y;
  const auto of_forward = static_cast<std::ptrdiff_t>(rehearsal.events().size());
  y.sum().backward();
  const auto& events = rehearsal.events();
  return {.operations = rehearsal.operations(),
          .forward = {events.begin(), events.begin() + of_forward},
          .backward = {events.begin() + of_forward, events.end()},
          .reaches = parallel.group->reaches()};
}

RowExchanges RowRehearsals::AtJobsLength(int64_t layer, int64_t batch) const {
  const int sp = config_.parallel.row_ranks();
  const std::vector<int64_t> lengths =
      model::CutRow(config_.data.seq_len, sp, model::SequenceParallel::kAlign);
  // The lengths of the longest slice, and of the shortest slice that precedes another one.
  const int64_t length = lengths[0], least = lengths[static_cast<size_t>(sp) - 2];
  const auto rehearse = [&](int64_t of_slice) {
    return Rehearse(layer, batch, std::vector<int64_t>(static_cast<size_t>(sp), of_slice));
  };
  const auto whole = [&] { return Rehearse(layer, batch, lengths); };
  if (length <= 2 * kFewTokens) return whole();
  // How a past is fetched depends on whether it lies within the neighbour's slice. Slices of a
  // rehearsal are therefore at least as long as all pasts that do, and shorter than all others.
  int64_t shorter = kFewTokens;
  RowExchanges first = rehearse(shorter);
  bool within = true;  // All pasts lie within the neighbour's slice.
  for (const int64_t reach : first.reaches) {
    if (reach > least && reach <= length) return whole();
    if (reach <= least) shorter = std::max(shorter, reach);
    within = within && reach <= least;
  }
  if (length <= 2 * shorter) return whole();
  if (shorter > kFewTokens) first = rehearse(shorter);
  if (within) return first;
  const RowExchanges second = rehearse(2 * shorter);
  if (!SameOperations(first, second)) return whole();
  for (size_t i = 0; i < first.operations.size(); ++i) {
    int64_t& bytes = first.operations[i].bytes;
    bytes += (second.operations[i].bytes - bytes) * (length - shorter) / shorter;
  }
  return first;
}

const RowExchanges& RowRehearsals::OfLayer(const model::LanguageModel& model, int64_t layer) {
  const std::string key = KeyOf(model, layer);
  if (const auto known = layers_.find(key); known != layers_.end()) return known->second;
  // The number of rows changes the pieces that a state is cut into up to kScanPieces rows.
  const int64_t rows = config_.train.micro_batch, batch = std::min(rows, ops::kScanPieces);
  RowExchanges exchanges = AtJobsLength(layer, batch);
  for (dist::RehearsedOperation& operation : exchanges.operations)
    operation.bytes = operation.bytes * rows / batch;
  return layers_.emplace(key, std::move(exchanges)).first->second;
}

}  // namespace halflife::train
