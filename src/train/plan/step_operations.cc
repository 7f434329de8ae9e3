#include "train/plan/step_operations.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "dist/mesh.h"
#include "dist/parameter_gather.h"
#include "model/blocks/block.h"
#include "model/mixer.h"
#include "model/model_cost.h"
#include "model/sequence_parallel.h"
#include "train/config/plan.h"
#include "train/lora/lora.h"
#include "train/step/arena_optimizer.h"
#include "train/step/float8_layers.h"
#include "train/step/gradient_sync.h"
#include "train/step/matrix_exchange.h"
#include "train/step/parameter_arena.h"
#include "train/step/shared_rows.h"
#include "train/step/step_scalars.h"

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

namespace {

// Returns the elements of a head's state [K, V], if that is the layer's first state, or 0.
int64_t StateElements(const model::LanguageModel& model, int64_t layer) {
  const std::vector<model::StateTensor> state = model.block(layer).mixer().traits().state;
  if (state.empty() || state[0].shape.size() != 3) return 0;
  return state[0].shape[1] * state[0].shape[2];
}

// The parameters that are trained, and the compute of each layer.
class Pieces {
 public:
  // `mixing`: for each block, this rank's token-to-token work relative to that of an average token.
  Pieces(const RunConfig& config, const model::LanguageModel& model, int64_t tokens,
         const std::vector<double>& mixing, double updated_elements, int64_t num_micro_batches)
      : num_layers_(config.model.num_layers), params_(config.model.num_layers + 2) {
    const bool bf16 = config.train.computes_in_bf16();
    const double element = bf16 ? 2 : 4;
    const model::Recompute recompute = RecomputeOf(config);
    const auto rows = static_cast<double>(tokens);
    std::vector<double> weights(params_.size());
    for (int param = 0; param < model.parameters().size(); ++param) {
      const auto layer = static_cast<size_t>(1 + model.LayerOf(param));
      if (config.lora.rank == 0) params_[layer].push_back(param);
      weights[layer] += static_cast<double>(model.parameters().specs()[param].count());
    }
    double adapted = 0;  // elements of the matrices that have an A and a B
    if (config.lora.rank > 0) {
      int trained = 0;
      for (const int param : LoraTargets(config.lora, model)) {
        std::vector<int>& of_layer = params_[static_cast<size_t>(1 + model.LayerOf(param))];
        of_layer.push_back(trained++);
        of_layer.push_back(trained++);
        adapted += static_cast<double>(model.parameters().specs()[param].count());
      }
    }
    const model::ModelCost cost(model, config.data.seq_len, config.train.device == "cuda");
    const int64_t bytes = bf16 ? 2 : 4;
    for (const auto kind : {ComputePiece::Kind::kForward, ComputePiece::Kind::kBackward}) {
      const bool backward = kind == ComputePiece::Kind::kBackward;
      for (int64_t layer = -1; layer <= num_layers_; ++layer) {
        model::FlopCount flops = cost.FlopsOfLayer(layer);
        double kept = cost.ActivationBytesOfLayer(layer, bytes);
        model::FlopCount again;
        if (backward) {
          flops.matmul *= 2;
          flops.mixing *= 2;
          again = cost.RecomputedFlopsOfLayer(layer, recompute);
          flops += again;
          kept += cost.RecomputedBytesOfLayer(layer, bytes, recompute);
        }
        const double of_layer = weights[static_cast<size_t>(layer + 1)];
        const bool block = layer >= 0 && layer < num_layers_;
        const double share = block ? mixing[static_cast<size_t>(layer)] : 1;
        // Each value kept for backward is written and read once in each direction. A gradient is
        // written and then added to the arena's.
        pieces_.push_back({.kind = kind,
                           .layer = layer,
                           .mixer = block ? config.model.mixer_of(layer).name() : "",
                           .state_elements = block ? StateElements(model, layer) : 0,
                           .matmul_flops = rows * flops.matmul,
                           .mixing_flops = rows * flops.mixing * share,
                           .bytes = 2 * rows * kept + of_layer * (element + (backward ? 12 : 0)),
                           .recomputed_flops = rows * (again.matmul + again.mixing * share)});
      }
    }
    // The update reads and writes main and the optimizer's states, reads the gradient twice (its
    // norm comes first), and writes the compute copy. With LoRA, W of each target is computed from
    // A and B, and each micro-batch has multiplied its gradient by both.
    const auto num_states = static_cast<double>(config.optimizer.state_names().size());
    pieces_.push_back({.kind = ComputePiece::Kind::kUpdate,
                       .matmul_flops = static_cast<double>(config.lora.rank) * adapted *
                                       static_cast<double>(2 + 4 * num_micro_batches),
                       .bytes = updated_elements * (8 * (1 + num_states) + 2 * 4 + (bf16 ? 2 : 0)) +
                                2 * adapted * element});
  }

  const std::vector<ComputePiece>& pieces() const { return pieces_; }
  const std::vector<int>& params(int64_t layer) const {
    return params_[static_cast<size_t>(layer + 1)];
  }
  const std::vector<std::vector<int>>& params_of_layers() const { return params_; }
  int64_t forward(int64_t layer) const { return layer + 1; }
  int64_t backward(int64_t layer) const { return num_layers_ + 2 + layer + 1; }
  int64_t update() const { return 2 * (num_layers_ + 2); }

 private:
  int64_t num_layers_;
  std::vector<std::vector<int>> params_;  // Indexed by layer + 1.
  std::vector<ComputePiece> pieces_;
};

// Rehearses one rank's step in the order of StepRunner. Nothing is computed.
class RankRehearsal {
 public:
  RankRehearsal(const RunConfig& config, model::LanguageModel& model, const RankOfJob& rank,
                RowRehearsals& rows, StepOperations& step)
      : config_(config),
        model_(model),
        rows_(rows),
        step_(step),
        mesh_(MeshOf(config, rank.rank, rank.world_size)),
        control_(Group(rank.rank, rank.world_size, "control")),
        shard_(Group(mesh_.ShardGroup())),
        replica_(mesh_.has_replicas() ? Group(mesh_.ReplicaGroup()) : nullptr),
        unit_ranks_(Group(mesh_.ShardGroup(), "units")),
        lora_(config.lora.rank > 0 ? std::make_unique<Lora>(config.lora, model) : nullptr),
        arena_(lora_ ? lora_->parameters() : model.parameters(),
               ParameterArena::Of(config, model, at::kMeta, rank.rank, rank.world_size)),
        pieces_(config, model, step.tokens, MixingShares(), UpdatedElements(),
                step.num_micro_batches),
        optimizer_(config.optimizer.algorithm.Make(config.optimizer.adamw)),
        gradients_(arena_, {*shard_, replica_.get()},
                   {.in_bf16 = config.parallel.grad_reduce == "bf16"}) {
    step.pieces = pieces_.pieces();
    if (const optim::MatrixRule* const rule = optimizer_->matrix_rule()) {
      if (mesh_.has_replicas()) slices_ = Group(mesh_.SliceGroup());
      matrices_.emplace(MakeMatrixExchange(
          arena_, RulesOf(config.optimizer, arena_.layout().specs()), *rule,
          slices_ ? slices_.get() : shard_.get(),
          config.train.device == "cuda" ? Device::Kind::kCuda : Device::Kind::kCpu));
      for (const WholeMatrix& matrix : matrices_->owned())
        step.pieces.back().matmul_flops += rule->TransformFlops(matrix.rows, matrix.columns);
    }
    if (!arena_.sliced()) return;
    gather_.emplace(arena_.layout(), dist::ShardGroups(*shard_, replica_.get()),
                    arena_.ComputedArrays(), NeededByLayers(), config.parallel.num_prefetched());
    // A run gathers all weights at its start, and frozen ones only then.
    gather_->Start(nullptr);
    gather_->AwaitAll();
    if (arena_.units() != nullptr) units_.emplace(arena_.UnitParts(*unit_ranks_, *gather_));
  }

  void Step() {
    const int64_t count = step_.num_micro_batches;
    if (lora_ && gather_) gather_->AwaitAll();
    for (int64_t micro = 0; micro < count; ++micro) MicroBatch(micro, count);
    gradients_.Finish();
    StepScalars().Reduce(*control_);
    step_.rehearsal.Compute(pieces_.update());
    if (matrices_) ExchangeMatrices();
    if (gather_) gather_->Start(nullptr);
    if (units_) units_->Invalidate();
  }

  void RecordSizes() {
    const auto bytes = [](const at::Tensor& x) { return static_cast<double>(x.nbytes()); };
    step_.main_and_optimizer_bytes = 0;
    for (const ParameterArena::StoredArray& array : arena_.stored_arrays())
      step_.main_and_optimizer_bytes += bytes(*array.tensor);
    step_.gradient_bytes = bytes(arena_.grads()) + static_cast<double>(gradients_.wire_bytes());
    if (arena_.compute_copy().defined()) step_.compute_copy_bytes = bytes(arena_.compute_copy());
    step_.compute_copy_bytes += Float8Bytes(config_, model_.parameters().specs(),
                                            /*on_gpu=*/config_.train.device == "cuda");
    if (arena_.units() != nullptr) step_.unit_bytes = static_cast<double>(arena_.units()->bytes());
    if (matrices_) step_.matrix_buffer_bytes = static_cast<double>(matrices_->buffer_bytes());
    step_.bucket_slot_bytes = static_cast<double>(gradients_.max_bucket_bytes());
  }

 private:
  std::unique_ptr<dist::Communicator> Group(const dist::ProcessGroup& group,
                                            const std::string& name = "") {
    return Group(group.rank, group.size, name.empty() ? group.name : name);
  }
  std::unique_ptr<dist::Communicator> Group(int rank, int size, const std::string& name) {
    return size == 1 ? dist::MakeSelfCommunicator(name)
                     : step_.rehearsal.MakeGroup(rank, size, name);
  }

  void ExchangeMatrices() {
    matrices_->Run({.stage = [](const HeldRange&, const at::Tensor&) {},
                    .transform = [](const WholeMatrix&, const at::Tensor&) {},
                    .apply = [](const HeldRange&, const at::Tensor&) {}});
  }

  // If a layer sees all earlier tokens, rank r of R attends to (2 r + 1) / R times the row's mean.
  std::vector<double> MixingShares() {
    std::vector<double> shares(static_cast<size_t>(config_.model.num_layers), 1.0);
    if (mesh_.sp() == 1) return shares;
    for (size_t layer = 0; layer < shares.size(); ++layer) {
      const auto& reaches = rows_.OfLayer(model_, static_cast<int64_t>(layer)).reaches;
      if (!reaches.empty() && *reaches.rbegin() >= config_.data.seq_len)
        shares[layer] = (2.0 * mesh_.sp_index() + 1) / mesh_.sp();
    }
    return shares;
  }

  double UpdatedElements() const {
    double sum = 0;
    for (const dist::Fragment& part : arena_.updated_fragments())
      if (!arena_.layout().frozen(part.param)) sum += static_cast<double>(part.end - part.begin);
    return sum;
  }

  // Returns the parameters that each layer needs. With LoRA, A and B are all needed before the
  // first layer.
  std::vector<std::vector<int>> NeededByLayers() const {
    if (!lora_) return pieces_.params_of_layers();
    std::vector<int> all;
    for (const std::vector<int>& params : pieces_.params_of_layers())
      all.insert(all.end(), params.begin(), params.end());
    return {all};
  }

  void Await(int64_t layer) {
    if (lora_) return;
    if (units_) {
      units_->AwaitForward(static_cast<int>(layer) + 1, nullptr);
    } else if (gather_) {
      gather_->Await(static_cast<int>(layer) + 1);
    }
  }

  void Replay(const RowExchanges& layer, const std::vector<dist::RehearsedEvent>& events) {
    std::vector<int64_t> issued(layer.operations.size(), -1);
    for (const dist::RehearsedEvent& event : events) {
      const auto index = static_cast<size_t>(event.value);
      if (event.kind == dist::RehearsedEvent::Kind::kIssue) {
        dist::RehearsedOperation operation = layer.operations[index];
        operation.group = mesh_.RowGroup().name;
        issued[index] = step_.rehearsal.Issue(std::move(operation));
      } else if (issued[index] >= 0) {
        step_.rehearsal.Wait(issued[index]);
      }
    }
  }

  void Exchange(int64_t layer, bool forward) {
    if (mesh_.sp() == 1 || layer < 0 || layer == config_.model.num_layers) return;
    const RowExchanges& exchanges = rows_.OfLayer(model_, layer);
    Replay(exchanges, forward ? exchanges.forward : exchanges.backward);
    if (!exchanges.reaches.empty())
      step_.longest_past =
          std::max(step_.longest_past, std::min(*exchanges.reaches.rbegin(), config_.data.seq_len));
  }

  void MicroBatch(int64_t index, int64_t count) {
    for (int64_t layer = -1; layer <= config_.model.num_layers; ++layer) {
      Await(layer);
      Exchange(layer, /*forward=*/true);
      step_.rehearsal.Compute(pieces_.forward(layer));
    }
    gradients_.BeginMicroBatch(index, count);
    for (int64_t layer = config_.model.num_layers; layer >= -1; --layer) {
      if (units_ && layer >= 0 && layer < config_.model.num_layers)
        units_->AwaitBackward(static_cast<int>(layer) + 1, /*forward_follows=*/index < count - 1,
                              nullptr);
      Exchange(layer, /*forward=*/false);
      step_.rehearsal.Compute(pieces_.backward(layer));
      const std::vector<int>& params = pieces_.params(layer);
      for (auto param = params.rbegin(); param != params.rend(); ++param)
        if (!arena_.layout().frozen(*param)) gradients_.MarkComputed(*param);
    }
    gradients_.EndMicroBatch();
  }

  const RunConfig& config_;
  model::LanguageModel& model_;
  RowRehearsals& rows_;
  StepOperations& step_;
  const dist::DataMesh mesh_;
  std::unique_ptr<dist::Communicator> control_, shard_, replica_, unit_ranks_;
  std::unique_ptr<dist::Communicator> slices_;  // null: shard_ has the order of slices
  std::unique_ptr<Lora> lora_;                  // null: all weights are trained
  ParameterArena arena_;
  Pieces pieces_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<MatrixExchange> matrices_;
  GradientSync gradients_;
  std::optional<dist::ParameterGather> gather_;
  std::optional<dist::UnitGather> units_;
};

}  // namespace

StepOperations RehearseStep(const RunConfig& config, const RankOfJob& rank,
                            RowRehearsals& rehearsals) {
  model::LanguageModel model(config.model);  // Its parameters have sizes but no memory.
  StepOperations step;
  step.num_micro_batches = NumMicroBatches(config, rank.world_size);
  // The longest slice of any rank, because the others wait for it.
  step.tokens =
      config.train.micro_batch * model::CutRow(config.data.seq_len, config.parallel.row_ranks(),
                                               model::SequenceParallel::kAlign)[0];
  RankRehearsal run(config, model, rank, rehearsals, step);
  run.Step();
  step.second_event = step.rehearsal.events().size();
  step.second_operation = static_cast<int64_t>(step.rehearsal.operations().size());
  run.Step();
  run.RecordSizes();
  return step;
}

}  // namespace halflife::train
