#include "train/loop/trainer.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ckpt/agreement.h"
#include "ckpt/collective.h"
#include "ckpt/damage.h"
#include "ckpt/merged_weights.h"
#include "ckpt/retention.h"
#include "ckpt/step_dir.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/human.h"
#include "core/log.h"
#include "core/versions.h"
#include "dist/request.h"
#include "dist/wait_longer.h"
#include "eval/validation.h"
#include "model/model_cost.h"
#include "ops/torch/tensor_views.h"
#include "train/config/plan.h"
#include "train/loop/run_guards.h"
#include "train/loop/warm_start.h"
#include "train/plan/memory_plan.h"
#include "train/record/run_folder.h"

namespace halflife::train {
namespace {

RunConfig Resolve(RunConfig config, const data::Dataset& dataset, int rank) {
  if (config.model.vocab_size == 0) config.model.vocab_size = dataset.info().vocab_size;
  const int64_t steps = config.train.steps;
  ResolveSteps(config, dataset.info());
  if (rank == 0 && steps != config.train.steps && steps != LoopConfig{}.steps)
    HL_WARN("train", "train.steps ", steps, " of the recipe is ignored: train.max_epochs ",
            config.train.max_epochs, " makes ", config.train.steps,
            " steps. Use --set train.max_epochs=0 to make train.steps count.");
  return config;
}

// Collective. The ranks of a node are the smallest number on any of them, which is what
// ResolveShard refuses if nodes differ.
RunConfig WithShard(RunConfig config, Device device, dist::RankContext& context) {
  int64_t ranks = context.local_size();
  context.control()
      .AllReduce(Ref(&ranks, 1), dist::ReduceOp::kMin, {"ranks_of_node", 0}, nullptr)
      .WaitHost();
  ResolveShard(config, context.world_size(), static_cast<int>(ranks), device.is_cuda());
  return config;
}

data::TokenSourceConfig SourceConfig(const RunConfig& config, const dist::DataMesh& mesh) {
  return {.seq_len = config.data.seq_len,
          .micro_batch = config.train.micro_batch,
          .global_batch = config.train.global_batch,
          .dp_rank = mesh.dp_index(),
          .dp_size = mesh.dp(),
          .in_turn = config.parallel.sums_each_micro_batch(),
          .seed = config.train.seed,
          .reset_at_documents = config.data.reset_at_documents,
          .prefetch = config.data.prefetch,
          .epoch_end = data::EpochEndOf(config.data.epoch_end)};
}

// The position in the data is step x global_batch windows of seq_len in the seed's order.
constexpr const char* kFixedFields[] = {"train.global_batch", "data.seq_len", "data.epoch_end",
                                        "train.seed",         "data.hash",    "data.order_version",
                                        "data.blend_version"};

// All sources of a blend, as one field of the trajectory.
constexpr char kSourceField[] = "data.source";

// If rows are much longer than the documents, the effective context is shorter than data.seq_len.
void WarnOfShortDocuments(const RunConfig& config, const data::Dataset& dataset) {
  if (dataset.info().has_rows() || !config.data.reset_at_documents) return;
  const double mean = data::MeanDocumentTokens(dataset.info().train);
  if (mean >= 0.5 * static_cast<double>(config.data.seq_len)) return;
  HL_WARN("train", "the documents of the training split of ", dataset.folder().string(), " have ",
          Fixed(mean, 0), " tokens on average, and data.seq_len is ", config.data.seq_len,
          ". The state restarts at each document, so a token sees only its own document, not the "
          "whole row. Prepare the text with --documents file, or set "
          "data.reset_at_documents=false to continue across documents.");
}

void LogStart(const ckpt::WeightSource& source, const WarmStartReport& report) {
  HL_INFO("train", "started from ", source.where(), ": ", report.num_loaded, " tensors (",
          HumanCount(static_cast<double>(report.num_elements)), " elements) loaded, ",
          report.num_kept, " kept at their initial value, ", report.num_unused, " unused");
}

// Collective. Throws Error kUsage unless all ranks have read files with the same hashes: hosts may
// have different copies. Ranks that read faster wait an hour, and then as long as for any
// collective.
void RequireSameFiles(dist::Communicator& control, dist::OpTag tag, const std::string& what,
                      const std::string& hashes) {
  const auto judge = [&](const std::vector<std::string>& of_ranks) {
    const std::vector<int> odd = dist::OddRanks(of_ranks);
    if (odd.empty()) return std::string();
    HL_FAIL(ExitCode::kUsage, "the ranks have read different ", what, ": rank ",
            dist::JoinRanks(odd), " with the hash ", of_ranks[static_cast<size_t>(odd[0])],
            ", the others with ", dist::UsualValue(of_ranks),
            ". Copy the same files to all hosts, or use a shared file system.");
  };
  ckpt::OnEveryRank(
      control, tag, [&] { return hashes; }, judge,
      [](dist::Work& work) { dist::WaitLonger(work, ckpt::kRankZeroSeconds); });
}

// Formats text that Markdown shows verbatim.
std::string Verbatim(const std::string& text) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) out += "    " + line + "\n";
  return out;
}

// Whether a field is one of a list, so that a configuration without elements does not have it.
bool IsOfList(const std::string& field) {
  return field == "schedule.phase" || field.starts_with("optimizer.group.");
}

}  // namespace

Trainer::Trainer(RunConfig config, Device device, RunFolder folder, dist::RankContext& context,
                 const TrainOptions& options)
    : config_(WithShard(std::move(config), device, context)),
      context_(context),
      device_(device),
      mesh_(MeshOf(config_, context.rank(), context.world_size())),
      folder_(std::move(folder)),
      data_(config_),
      model_((config_ = Resolve(std::move(config_), data_.training(), context.rank())).model),
      trace_(options.trace, context),
      rank_times_(context.control()),
      waits_(options.count_waits ? std::make_optional<HostWaitReport>() : std::nullopt),
      sample_text_(options.sample_text),
      resumes_newest_(options.resume.mode == ckpt::ResumeMode::kAuto),
      skips_data_(options.skip_data > 0),
      versions_(VersionsHere()),
      save_policy_(config_.ckpt),
      stop_policy_(config_.train.time_limit_s),
      run_clock_(options.clock) {
  RequireSameFiles(context.control(), {"data_hash", 0}, "datasets", data_.AllHashes());
  data_.Require(config_, model_);
  if (!HasValidationSplit(config_, data_.training().info()) && !config_.data.is_blend())
    HL_INFO(
        "train", "the dataset has no ", config_.eval.split, " split: this run ",
        config_.eval.sets.empty() ? "does not validate" : "validates only the sets of eval.set");
  if (context.rank() == 0)
    for (const data::Dataset& source : data_.sources()) WarnOfShortDocuments(config_, source);
  RequireMemory(config_, model_, CurrentTarget(config_, context.world_size(), context.local_size()),
                context.rank());
  RequireFloat8(config_, model_.parameters().specs(), ComputeCapability(device_));
  const ParameterArena::Config arena =
      ParameterArena::Of(config_, model_, ToTorch(device_), context.rank(), context.world_size());
  if (config_.lora.rank > 0) {
    lora_.emplace(config_.lora, model_);
    lora_->Bind(arena.device, arena.compute_dtype);
    FrozenParameters(config_.optimizer, lora_->parameters().specs());  // throws if all are
  }
  arena_ =
      std::make_unique<ParameterArena>(lora_ ? lora_->parameters() : model_.parameters(), arena);
  source_config_ = SourceConfig(config_, mesh_);
  if (!options.trace.file.empty())
    source_config_.on_read = [this](int64_t begin_us, int64_t end_us) {
      trace_.Read(begin_us, end_us);
    };
  source_ = data_.MakeSource(config_, source_config_, /*stored=*/nullptr, /*num_steps=*/0);
  target_guard_.emplace(config_, source_->order());
  store_comm_ = context.control().Split(0, mesh_.slice(), "ckpt");
  store_ = std::make_unique<ckpt::CheckpointStore>(folder_.path() / "ckpt", *store_comm_,
                                                   config_.ckpt.store);
  if (context.rank() == 0) store_->SetOwnershipCheck([this] { folder_.CheckStillOwner(); });
  Resume(options);
  WriteRunFiles();
  runner_ = std::make_unique<StepRunner>(config_, model_, *arena_, *source_, context_, device_,
                                         lora_ ? &*lora_ : nullptr);
  runner_->ShareParameters();
  if (config_.train.preference.is_on()) StartPreference(options);
  WarnOfSchedule();
  save_ = std::make_unique<BackgroundSave>(*store_, *store_comm_, *arena_,
                                           config_.optimizer.ema_decay, frozen_average_);
  if (options.skip_data > 0 && !Finished()) SaveSkip();
  folder_.Keep();
}

Trainer::~Trainer() = default;

ckpt::StepState Trainer::CurrentState(bool final) const {
  ckpt::StepState state = state_;
  save_policy_.AddBest(state.metrics);
  state.data.order_version = data::kOrderVersion;
  state.data.seed = config_.train.seed;
  state.data.next_sample = source_->order().FirstSample(DataStep());
  state.data.samples = source_->order().NumSamplesBefore(state.step);
  state.data.epoch = source_->order().EpochOf(DataStep());
  state.data.tokens = state.data.samples * config_.data.seq_len;
  state.data.dataset = data_.hash();
  if (const data::Blend* const blend = source_->blend())
    data_.AddBlend(config_, *blend, static_cast<int64_t>(DataStep()), state.data);
  state.data.seq_len = static_cast<uint32_t>(config_.data.seq_len);
  state.data.classes = data_.training().info().classes;
  state.optimizer = config_.optimizer.algorithm.name();
  state.rng_seed = config_.train.seed;
  state.run_config_text = ToText(config_);
  state.trajectory = TrajectoryFields(config_);
  state.trajectory["data.order_version"] = Concat(data::kOrderVersion);
  if (config_.data.is_blend()) {
    // The hashes of the sources are in the cursor, because sources may be added and removed.
    state.trajectory[kSourceField] = config_.data.SourcesText();
    state.trajectory["data.blend_version"] = Concat(data::kBlendVersion);
  } else {
    state.trajectory["data.hash"] = ToHex(data_.training().info().hash);
  }
  state.model_family = config_.model.mixer.name();
  state.model_config_json = model::ToJson(model::Resolved(config_.model));
  state.mesh = {.world = context_.world_size(),
                .dp = mesh_.dp(),
                .sp = mesh_.sp(),
                .zero_stage = config_.parallel.zero_stage,
                .shard = config_.parallel.zero_stage > 0
                             ? config_.parallel.shard_ranks(context_.world_size())
                             : 1};
  state.versions = versions_;
  state.final = final;
  return state;
}

// Returns the arrays of an arena on the CPU.
ckpt::ArenaView Trainer::InPlaceArena() {
  ckpt::ArenaView view = {.layout = &arena_->layout(), .arrays = {}};
  for (const auto& [name, tensor, sliced_end, trained] : arena_->stored_arrays())
    view.arrays.push_back(
        {.name = name, .data = tensor->mutable_data_ptr<float>(), .sliced_end = sliced_end});
  return view;
}

void Trainer::FinishLoad() {
  const c10::AutoGradMode no_grad(false);
  if (loaded_) {
    loaded_->CopyToArena();
    frozen_average_.values = loaded_->LoadedFrozenAverage();
    loaded_.reset();
    GatherWholeArrays();
  }
  arena_->RefreshComputeCopy();
}

// Completes the arrays that are whole on every rank from the slices that the ranks have loaded.
void Trainer::GatherWholeArrays() {
  if (context_.world_size() == 1) return;
  const dist::ProcessGroup group = mesh_.SliceGroup();  // the order in which slices were loaded
  const std::unique_ptr<dist::Communicator> own =
      group.is_world ? nullptr : dist::Split(context_.world(), group);
  dist::Communicator& ranks = own ? *own : context_.world();
  const cudaStream_t stream = ops::CurrentStream(device_);
  for (const auto& [name, tensor, sliced_end, trained] : arena_->stored_arrays()) {
    int index = 0;
    for (const dist::Bucket& bucket : arena_->layout().buckets()) {
      if (bucket.end <= sliced_end || (trained && bucket.frozen)) continue;
      const int64_t place =
          trained ? bucket.trained_begin
                  : arena_->layout().PlaceOf({.arena_begin = bucket.begin}, sliced_end);
      const int64_t count = bucket.end - bucket.begin, part = count / ranks.size();
      const TensorRef whole = ops::RefOf(tensor->narrow(0, place, count));
      ranks
          .AllGather(whole.Slice(ranks.rank() * part, part), whole, {"ckpt_gather", index++},
                     stream)
          .WaitOn(stream);
    }
  }
}

// Returns the names that a checkpoint can be compared by, without the fields that may differ
// anyway, and without those of lists that this configuration does not have.
std::vector<std::string> Trainer::FieldsToChange(const std::vector<std::string>& names,
                                                 const ckpt::StepState& expected) const {
  const std::vector<std::string> compared = ckpt::ComparedFields(
      {.model_config_json = expected.model_config_json, .trajectory = expected.trajectory});
  const std::map<std::string, std::string> fields = FlatFields(config_);
  std::vector<std::string> to_change;
  for (const std::string& name : names) {
    const bool of_model = name.starts_with("model.");  // A checkpoint compares all of them.
    const bool is_compared = std::ranges::count(compared, name) > 0;
    if (!is_compared && IsOfList(name)) continue;
    if (of_model || is_compared || !fields.contains(name)) {
      to_change.push_back(name);
    } else if (context_.rank() == 0) {
      HL_INFO("train", "--allow-change ", name, ": this field may differ without it");
    }
  }
  return to_change;
}

void Trainer::Resume(const TrainOptions& options) {
  for (const char* fixed : kFixedFields) {
    HL_CHECK_AS(ExitCode::kUsage,
                std::find(options.allow_change.begin(), options.allow_change.end(), fixed) ==
                    options.allow_change.end(),
                "--allow-change ", fixed,
                ": this field determines which samples were already seen. "
                "Changing it would skip or repeat some. Start another run instead.");
  }
  allow_change_ = FieldsToChange(options.allow_change, CurrentState(false));
  // Before newer steps are renamed:
  RequireStepsAreNotEpochs(config_, options.skip_data, 0);
  const data::Dataset& dataset = data_.training();
  if (context_.rank() == 0 && dataset.info().has_tokenizer()) folder_.HasTokenizerOf(dataset);
  // After the first attempt that has removed a list, its checkpoints do not have the fields either.
  const auto loaded = Load(options.resume, [&](const std::string& field) {
    return IsOfList(field) && std::ranges::count(options.allow_change, field) > 0;
  });
  HL_CHECK_AS(ExitCode::kUsage, loaded || options.skip_data == 0, "--skip-data ", options.skip_data,
              ": there is no checkpoint from which data could be skipped. Remove the option.");
  if (loaded) {
    skipped_steps_ += options.skip_data;
    resumed_run_ = ckpt::RunOfStep(loaded->path);
    damage_ = loaded->damage;
    HL_INFO("train", "resumed from ", loaded->path.string(), ", step ", state_.step,
            skipped_steps_ == 0 ? "" : Concat(", without the data of ", skipped_steps_, " steps"));
    if (lora_ && context_.rank() == 0) CopyLoraBase(loaded->path, folder_.path(), state_.run_id);
  } else {
    Start(options);
  }
  if (lora_) LoadLoraBase();
  const bool own_step = loaded && loaded->own;
  if (own_step) save_policy_.NoteSaved(static_cast<int64_t>(state_.step));
  if (own_step && options.skip_data > 0) state_.parent_step = loaded->state.parent_step;
  save_policy_.TakeBest(state_.metrics, own_step);
  if (loaded && config_.data.is_blend())
    source_ =
        data_.MakeSource(config_, source_config_, &state_.data, static_cast<int64_t>(DataStep()));
  source_->Seek(source_->order().FirstSample(DataStep()));
}

std::optional<ckpt::LoadReport> Trainer::Load(
    const ckpt::ResumeRequest& request, const std::function<bool(const std::string&)>& may_differ) {
  const ckpt::StepState expected = CurrentState(false);
  // A fresh start needs no host memory for the model, and a resume only for the own slices.
  if (!arena_is_stored()) loaded_ = std::make_unique<HostSlices>(*arena_, store_comm_->rank());
  const Stopwatch watch;
  auto loaded =
      store_->Load(request,
                   {.model_family = expected.model_family,
                    .model_config_json = expected.model_config_json,
                    .canonical_model_config =
                        [](const std::string& stored) {
                          return model::ToJson(model::Resolved(model::ModelConfigFromJson(stored)));
                        },
                    .trajectory = expected.trajectory,
                    .trajectory_defaults = TrajectoryFields(RunConfig()),
                    .allow_change = allow_change_,
                    .may_differ = may_differ,
                    .check_state = [this](const auto& state,
                                          const auto& step) { RequireRunOfStep(state, step); },
                    .max_step = static_cast<uint64_t>(config_.train.steps)},
                   loaded_ ? loaded_->View() : InPlaceArena(),
                   loaded_ ? [this] { loaded_->Allocate(); return loaded_->View(); }
                           : std::function<ckpt::ArenaView()>());
  if (loaded) {
    FinishLoad();
    state_ = loaded->state;
    frozen_average_.num_updates = state_.num_updates;
    if (state_.num_updates == 0) StartAverage();
    state_.parent_step = loaded->path.filename().string();
    skipped_steps_ = SkippedSteps(state_);
    stop_policy_.NoteSave(watch.Seconds());  // until a save has been measured
  }
  loaded_.reset();
  return loaded;
}

// Throws if the run cannot continue from a step: a dataset of a blend, the base weights of LoRA or
// the scores of the initial model are missing or belong to another run. Called before newer steps
// are renamed.
void Trainer::RequireRunOfStep(const ckpt::StepState& state, const std::filesystem::path& step) {
  RequireStepsAreNotEpochs(config_, 0, SkippedSteps(state));
  data_.RequireSameSources(config_, state.data);
  if (lora_) FindLoraBase(step, folder_.path(), state.run_id);
  if (config_.train.preference.is_on()) {
    Reference reference = EmptyReference(state.run_id);
    ReadReference(FolderOfReference(ckpt::RunOfStep(step), folder_.path()), reference);
  }
}

uint64_t Trainer::SkippedSteps(const ckpt::StepState& state) const {
  return std::max(source_->order().StepAt(state.data.next_sample), state.step) - state.step;
}

// Goes back to a checkpoint before the spikes, and continues with the data after them. That
// checkpoint is written again with the new place in the data, so a run that is stopped before its
// next save resumes there. The newer ones are then deleted.
void Trainer::RollBack() {
  AwaitSave();
  Heartbeat("load");  // for the watchdog: a load may take longer than a step
  runner_->AwaitParameters();
  const uint64_t spike = state_.step, next_data = DataStep();
  const uint32_t rollbacks = state_.guard.rollbacks + 1;
  const uint64_t first_spike = state_.guard.spikes.front();
  std::vector<ckpt::StepDir> steps;
  const ckpt::LoadReport loaded = LoadBeforeSpikes(steps);
  state_.parent_step = loaded.state.parent_step;  // It is written again, and not its own parent.
  state_.guard.rollbacks = rollbacks;
  const bool after_spike = state_.step >= first_spike;
  if (after_spike) {  // With the spikes that it has seen, the next one would be enough.
    state_.guard.spikes.clear();
    state_.guard.consecutive_skips = 0;
  }
  skipped_steps_ = next_data - state_.step;
  source_->Seek(source_->order().FirstSample(DataStep()));
  target_guard_.emplace(config_, source_->order());
  save_policy_ = SavePolicy(config_.ckpt);
  save_policy_.NoteSaved(static_cast<int64_t>(state_.step));
  save_policy_.TakeBest(state_.metrics, /*own=*/true);
  runner_->ShareParameters();
  if (context_.rank() == 0) {
    HL_WARN("train", "went back from step ", spike, " to step ", state_.step,
            " because of spikes (rollback ", rollbacks, " of at most ", config_.train.max_rollbacks,
            "), and skips the data of the ", spike - state_.step, " steps between them");
    if (after_spike)
      HL_WARN("train", "step ", state_.step,
              " is the oldest checkpoint, and the first spike is at step ", first_spike,
              ". Use a larger ckpt.keep_last to go back to before the spikes.");
    OpenMetrics();
  }
  SaveNow(/*must_succeed=*/true, /*final=*/false);
  ckpt::OnRankZero(context_.control(), {"rollback_delete", 0}, [&] {
    ckpt::DeleteSuperseded(folder_.path() / "ckpt", steps);
    return std::string();
  });
}

// Loads the newest checkpoint from before the spikes, or else the oldest one. Damaged ones are
// renamed to .bad. `steps`: on rank 0, receives the steps of the run.
ckpt::LoadReport Trainer::LoadBeforeSpikes(std::vector<ckpt::StepDir>& steps) {
  const std::filesystem::path folder = folder_.path() / "ckpt";
  for (;;) {
    const std::string step = ckpt::OnRankZero(context_.control(), {"rollback", 0}, [&] {
      steps = ckpt::ListSteps(folder);
      const auto found = StepToGoBackTo(steps, state_.guard);
      return found ? Concat(*found) : std::string();
    });
    HL_CHECK_AS(ExitCode::kNonFinite, !step.empty(), "step ", state_.step,
                ": the loss is a spike, and the run has no checkpoint to go back to. Use a smaller "
                "ckpt.every.");
    try {
      // The step may be from before a change that --allow-change has allowed since.
      return *Load(
          {.mode = ckpt::ResumeMode::kStep, .step = std::stoull(step)},
          [](const std::string& field) { return std::ranges::count(kFixedFields, field) == 0; });
    } catch (const ckpt::DamageError&) {  // the same on all ranks
      ckpt::OnRankZero(context_.control(), {"rollback_bad", 0}, [&] {
        HL_WARN("train", "step ", step, " is damaged and was renamed to .bad. The run goes back ",
                "to another step.");
        return ckpt::SetAside(folder / ckpt::StepName(std::stoull(step)), "bad").string();
      });
    }
  }
}

void Trainer::Start(const TrainOptions& options) {
  arena_->Initialise(config_.train.seed);
  StartAverage();
  state_.run_id = dist::BroadcastBytes(context_.control(), RandomHex(16), 0, {"run_id", 0});
  if (lora_) return StartLora(options);
  if (options.init_from == nullptr) return;
  const WarmStartReport report = WarmStart(*options.init_from, options.init_rules, *arena_);
  LogStart(*options.init_from, report);
  RequireSameFiles(context_.control(), {"init_from", 0},
                   Concat("weights from ", options.init_from->where()), ToHex(report.hash));
  StartAverage();
}

// Before the first update, the average of the weights is the weights.
void Trainer::StartAverage() {
  frozen_average_.values.clear();
  if (config_.optimizer.ema_decay > 0) arena_->CopyMainTo(OptimizerConfig::kAverage);
}

// Rank 0 writes the base weights into the run, from which all ranks load them.
void Trainer::StartLora(const TrainOptions& options) {
  HL_CHECK_AS(ExitCode::kUsage, options.init_from != nullptr, "lora.rank ", config_.lora.rank,
              " adapts the weights of another model, and none is named. Use --init-from RUN, or "
              "--set lora.rank=0 to train all weights.");
  if (context_.rank() != 0) return;
  const model::ParameterSet& parameters = model_.parameters();
  const StartValues values(
      *options.init_from, options.init_rules, parameters.specs(), [&](int param) {
        const dist::ParamSpec& spec = parameters.specs()[param];
        at::Tensor initial = at::empty(spec.shape, at::kFloat);
        parameters.Initialise(param, config_.train.seed, initial.mutable_data_ptr<float>());
        return initial;
      });
  WriteLoraBase(folder_.path(), parameters.specs(), values, CurrentState(false));
  LogStart(*options.init_from, values.report());
}

void Trainer::LoadLoraBase() {
  // No deadline applies to the other ranks while rank 0 writes the base.
  ckpt::Arrive(context_.control(), {"lora_base", 0});
  const ckpt::StepWeights base(
      ckpt::StepReader::Open(folder_.path() / ckpt::kLoraBaseFolder));  // FindLoraBase checked it
  lora_->Load(base);
}

ScoringConfig Trainer::ScoringOfPairs() const {
  return {.seq_len = config_.data.seq_len,
          .batch = config_.train.micro_batch,
          .parallel = runner_->parallel(),
          .equal_passes = config_.parallel.zero_stage == 3};
}

Reference Trainer::EmptyReference(const std::string& run_id) const {
  const data::Dataset& dataset = data_.training();
  Reference reference = {.run_id = run_id};
  for (const data::Split split : data::kSplits)
    if (dataset.split(split).num_tokens > 0)
      reference.splits[split] = AnswerScores(data::ViewOf(dataset, split));
  return reference;
}

// Scores all pairs by the initial model, or reads the scores of the run that is resumed.
void Trainer::StartPreference(const TrainOptions& options) {
  const data::Dataset& dataset = data_.training();
  reference_ = EmptyReference(state_.run_id);
  std::filesystem::path kept;  // the folder with the scores
  if (resumed_run_) {
    kept = FolderOfReference(*resumed_run_, folder_.path());
    ReadReference(kept, reference_);
  } else {
    HL_CHECK_AS(ExitCode::kUsage, options.init_from != nullptr, "train.preference.loss ",
                config_.train.preference.loss,
                " compares the answers with those of another model, and none is named. Use "
                "--init-from RUN.");
    runner_->AwaitParameters();
    Heartbeat("reference");
    const Stopwatch watch;
    ScoringConfig scoring = ScoringOfPairs();
    scoring.waits_for_all = true;  // It may take hours.
    scoring.on_batch = [this] {
      if (heartbeat_clock_.Seconds() > 10) Heartbeat("reference");
    };
    int64_t num_pairs = 0;
    for (auto& [split, scores] : reference_.splits) {
      const data::TokenView view = data::ViewOf(dataset, split);
      const int64_t num_rows = data::NumWindows(view, config_.data.seq_len);
      scores =
          ScoreAnswers(model_, view, eval::ChooseWindows(0, num_rows), scoring, context_.control());
      num_pairs += scores.num_pairs();
    }
    HL_INFO("train", "the initial model has scored ", Counted(num_pairs, "pair"), " in ",
            HumanSeconds(watch.Seconds()));
  }
  if (context_.rank() == 0 && kept != folder_.path()) WriteReference(folder_.path(), reference_);
  runner_->SetReference(reference_.splits.at(data::Split::kTrain));
}

std::unique_ptr<EventLog> Trainer::OpenEvents() const {
  if (!config_.log.tensorboard || NothingToDo()) return nullptr;
  const auto step = static_cast<int64_t>(state_.step);
  try {
    return std::make_unique<EventLog>(folder_.path() / "events", step == 0 ? 0 : step + 1);
  } catch (const Error& error) {  // As for the heartbeat: events are not a reason to stop training.
    HL_WARN("train", "no TensorBoard events: ", error.message());
    return nullptr;
  }
}

void Trainer::DescribeRun() {
  const BuildInfo build = GetBuildInfo();
  metrics_->Describe(
      "run/description",
      Verbatim(Concat("model    ", PlanSummary(config_, model_, context_.world_size()),
                      "\ndata     ", data_.Description(config_), "\ndevice   ",
                      device_.is_cuda() ? "cuda" : "cpu", ", ", config_.train.precision,
                      "\nbuild    ", build.version, " ", build.git_hash,
                      build.git_dirty ? " (modified)" : "", "\nattempt  ", folder_.attempt(),
                      state_.step == 0 ? "" : Concat(", from step ", state_.step))));
  metrics_->Describe("run/config", Verbatim(ToText(config_)));
}

void Trainer::WriteRunFiles() {
  if (context_.rank() != 0) return;
  folder_.WriteConfig(ToText(config_));
  if (data_.training().info().has_tokenizer()) folder_.CopyTokenizer(data_.training());
  if (!Finished()) folder_.RemoveDone();
  Heartbeat("start");
  OpenMetrics();
  DescribeRun();
  for (const std::string& banner : damage_) {
    metrics_->Damage(static_cast<int64_t>(state_.step), banner);
  }
  if (config_.train.log_samples) {
    samples_ = std::make_unique<RunLines>(folder_.path() / "samples.jsonl");
  }
  HL_INFO("train", PlanSummary(config_, model_, context_.world_size()));
  const std::string warning = PrecisionWarning(config_, device_.is_cuda());
  if (!warning.empty() && context_.rank() == 0) HL_WARN("train", warning);
  if (config_.train.precision == "fp8")
    HL_INFO("train",
            "multiplied in FP8: ", DescribeFloat8(config_.train, model_.parameters().specs()));
}

// On rank 0. After a rollback, the metrics belong to another attempt, because steps are repeated.
void Trainer::OpenMetrics() {
  const uint32_t rollbacks = state_.guard.rollbacks;
  metrics_.reset();
  const model::FlopCount flops = model::ModelCost(model_, config_.data.seq_len).FlopsPerToken();
  metrics_ = std::make_unique<Metrics>(
      MetricsConfig{
          .file = folder_.path() / "metrics.jsonl",
          .attempt = Concat(folder_.attempt(), rollbacks > 0 ? Concat("+", rollbacks) : ""),
          .objective = config_.model.objective.name(),
          .total_steps = config_.train.steps,
          .log_every = config_.train.log_every,
          .order = source_->order(),
          .skipped_steps = skipped_steps_,
          .blend = source_->blend(),
          .seq_len = config_.data.seq_len,
          .world_size = context_.world_size(),
          .flops_per_token_6p = 6.0 * model_.CountParameters().total(),
          .flops_per_token_full = 3.0 * (flops.matmul + flops.mixing),
          .peak = FindComputePeak(device_),
          .device = device_},
      OpenEvents());
}

// Rank 0 warns if the schedule does not fit the run's length, or does not continue the learning
// rate of the checkpoint, and if rollbacks may lack a checkpoint.
void Trainer::WarnOfSchedule() const {
  if (context_.rank() != 0 || Finished()) return;
  if (const std::string warning = RollbackWarning(config_); !warning.empty())
    HL_WARN("train", warning);
  const ScheduleConfig& schedule = config_.schedule;
  if (const std::string warning = ScheduleWarning(schedule, config_.train.steps); !warning.empty())
    HL_WARN("train", warning);
  const auto step = static_cast<int64_t>(state_.step);
  if (step == 0) return;
  const ResumedRate rate = {
      .step = step,
      .last = state_.last_lr,
      .planned = runner_->LearningRate(step - 1),
      .next = runner_->LearningRate(step),
      .own = save_policy_.IsSaved(step),
      .warming_up = schedule.kind != "phases" && step < schedule.warmup_steps,
      .before_decay = NewestBeforeDecay(state_.trajectory, state_.step,
                                        ckpt::ListPublished(folder_.path() / "ckpt"))};
  const std::string warning = RateJumpWarning(rate, schedule.kind, config_.train.steps);
  if (!warning.empty()) HL_WARN("train", warning);
}

void Trainer::Heartbeat(const char* phase) {
  context_.flight().EnterPhase(phase, static_cast<int64_t>(state_.step));
  WriteHeartbeat(phase);
}

void Trainer::RefreshHeartbeat(const char* phase) {
  constexpr double kSeconds = 10;
  if (heartbeat_clock_.Seconds() > kSeconds) WriteHeartbeat(phase);
}

void Trainer::WriteHeartbeat(const char* phase) {
  heartbeat_clock_.Restart();
  if (context_.rank() != 0) return;
  try {
    folder_.WriteHeartbeat(static_cast<int64_t>(state_.step), phase);
  } catch (const Error& error) {
    // A full disk must not end a run that the save policy would continue.
    HL_WARN("train", "no heartbeat: ", error.message());
  }
}

SetResult Trainer::ScorePairs(const ValidationSet& set) {
  const int64_t available = data::NumWindows(set.tokens, config_.data.seq_len);
  const std::vector<int64_t> rows = eval::ChooseWindows(set.num_windows, available);
  ScoringConfig scoring = ScoringOfPairs();
  scoring.on_batch = [this] { RefreshHeartbeat("validate"); };
  const AnswerScores scores = ScoreAnswers(model_, set.tokens, rows, scoring, context_.control());
  const ComparedRows compared =
      CompareRows(config_.train.preference, set.tokens, config_.data.seq_len, rows, scores,
                  reference_.splits.at(data::SplitOf(config_.eval.split)));
  const auto* const sums = compared.sums.const_data_ptr<double>();
  const auto mean = [&](double sum) { return sum / static_cast<double>(compared.num_pairs); };
  SetResult scored = {.name = set.name, .result = {}, .reward_margin = mean(sums[1] - sums[2])};
  scored.result.loss = scored.result.loss_hf = mean(sums[0]);
  scored.result.accuracy = mean(sums[3]);
  scored.result.num_targets = compared.num_pairs;
  scored.result.num_windows = std::ssize(rows);
  scored.result.num_available = available;
  return scored;
}

SetResult Trainer::ScoreText(const ValidationSet& set) {
  return {.name = set.name,
          .result = eval::Validate(model_, set.tokens,
                                   {.seq_len = config_.data.seq_len,
                                    .num_windows = set.num_windows,
                                    .batch = config_.train.micro_batch,
                                    .parallel = runner_->parallel(),
                                    .equal_passes = config_.parallel.zero_stage == 3,
                                    .on_batch = [this] { RefreshHeartbeat("validate"); }},
                                   context_.control())};
}

SetResult Trainer::Score(const ValidationSet& set) {
  SetResult scored = config_.train.preference.is_on() ? ScorePairs(set) : ScoreText(set);
  state_.metrics["val_loss" + scored.suffix()] = scored.result.loss;
  // Stored as an error, because ckpt.keep_best keeps the lowest value.
  if (scored.result.accuracy)
    state_.metrics["val_error" + scored.suffix()] = 1 - *scored.result.accuracy;
  return scored;
}

void Trainer::RunValidation() {
  const std::vector<ValidationSet> sets = data_.ValidationSets(config_);
  if (sets.empty()) return;
  const Stopwatch watch;
  runner_->AwaitParameters();
  Heartbeat("validate");
  std::vector<SetResult> results;
  for (const ValidationSet& set : sets) results.push_back(Score(set));
  if (metrics_) metrics_->Validation(static_cast<int64_t>(state_.step), results);
  ShowSampleText();
  // No deadline applies to the other ranks while rank 0 generates text.
  if (sample_text_) ckpt::Arrive(context_.control(), {"sample_text", 0});
  stop_policy_.NoteValidation(watch.Seconds());
}

// With ZeRO stage 3, all ranks generate the text, because each layer is gathered from all of them.
void Trainer::ShowSampleText() {
  const bool shows = metrics_ && metrics_->shows_texts();
  if (!sample_text_ || (!shows && config_.parallel.zero_stage < 3)) return;
  std::string text;
  try {
    text = sample_text_(model_);
  } catch (const dist::CommError&) {
    throw;
  } catch (const Error& error) {  // Sample text is not a reason to stop training.
    HL_WARN("train", "no sample text: ", error.message());
    return;
  }
  if (shows) metrics_->Text(static_cast<int64_t>(state_.step), "eval/sample", Verbatim(text));
}

void Trainer::EndSave(bool must_succeed, const std::function<BackgroundSave::Report()>& end) {
  try {
    const BackgroundSave::Report report = end();
    save_policy_.NoteSaved(report.step);
    stop_policy_.NoteSave(report.save.seconds);
    trace_.Save(report.step, report.begin_us,
                report.begin_us + std::llround(1e6 * report.save.seconds));
    if (metrics_) metrics_->Save(report.step, report.save, report.blocked_seconds);
  } catch (const Error& error) {
    // All ranks throw the same error and decide equally. The older steps are unchanged.
    if (!must_succeed && save_policy_.GoesOnAfter(error.code())) {
      if (context_.rank() == 0)
        HL_WARN("ckpt", "a save failed, training goes on: ", error.message(),
                ". A second consecutive failure will end the run.");
      return;
    }
    if (error.code() != ExitCode::kCheckpointIo) throw;
    HL_FAIL(error.code(), error.message(), "\n", AfterFailedSave());
  }
}

// Returns what the same command must change to continue from the newest step.
std::string Trainer::WithResumeAuto() const {
  if (resumes_newest_) return "";
  return skips_data_ ? " with --resume auto and without --skip-data" : " with --resume auto";
}

// Returns why a failed save ends the run, and what the user can do.
std::string Trainer::AfterFailedSave() const {
  const int64_t saved = save_policy_.saved_step();
  if (!skip_is_saved_)
    return Concat(
        "The run stops: it cannot save its place in the data after --skip-data, and a run that "
        "continues without it would train on the data that was left out. Free space on the disk "
        "of ",
        (folder_.path() / "ckpt").string(),
        " or repair it, then start the same command again with --resume and --skip-data.");
  return Concat(
      "The run stops: with ckpt.on_error 'warn' training goes on after one failed save, but not "
      "after two in a row or a failed last save. Free space on the disk of ",
      (folder_.path() / "ckpt").string(), " or repair it, then start the same command again",
      saved < 0 ? ": it continues from where this run began, because no step was saved."
                : Concat(WithResumeAuto(), ": it continues from step ", saved, "."));
}

void Trainer::AwaitSave() {
  if (!save_->under_way()) return;
  Heartbeat("save");
  EndSave(/*must_succeed=*/false, [this] { return save_->Finish(); });
}

// A failed save is logged, but it is not the reason that the run ends.
void Trainer::AwaitSaveOfEnd() {
  try {
    AwaitSave();
  } catch (const Error& error) {
    HL_WARN("ckpt", "the save in progress failed as well: ", error.message());
  }
}

// Saves an arena on the CPU itself, which does not change meanwhile.
void Trainer::SaveNow(bool must_succeed, bool final) {
  AwaitSave();
  Heartbeat("save");
  EndSave(must_succeed, [&] {
    if (!arena_is_stored()) {
      save_->Begin(CurrentState(final));
      return save_->Finish();
    }
    const int64_t begin_us = UnixMicroseconds();
    const auto report = store_->Save(InPlaceArena(), CurrentState(final));
    return BackgroundSave::Report{static_cast<int64_t>(state_.step), report, report.seconds,
                                  begin_us};
  });
}

// Saves the place in the data of --skip-data before the first step. A restart with --resume auto
// must not train on the data that was left out.
void Trainer::SaveSkip() {
  skip_is_saved_ = false;
  SaveNow(/*must_succeed=*/true, /*final=*/false);
  skip_is_saved_ = true;
}

void Trainer::SaveIfDue(bool requested) {
  const auto step = static_cast<int64_t>(state_.step);
  if (!save_policy_.IsDue(step, requested)) return;
  if (!config_.ckpt.background) return SaveNow(/*must_succeed=*/false, /*final=*/false);
  const Stopwatch watch;
  // Saves run one at a time, and none is omitted, so that a run's checkpoints follow from its
  // recipe.
  AwaitSave();
  if (watch.Seconds() > 1) {
    HL_WARN("ckpt", "training waited ", Fixed(watch.Seconds(), 1), " s at step ", step,
            " for the previous save to end. Use a larger ckpt.every.");
  }
  Heartbeat("save");
  save_->Begin(CurrentState(/*final=*/false));
}

void Trainer::LogSamples(const StepResult& result) {
  nlohmann::json own = nlohmann::json::array();
  for (const SampleRecord& record : result.samples) {
    own.push_back({record.sample, ToHex(record.tokens)});
  }
  const auto all = dist::AllGatherBytes(context_.control(), own.dump(), {"samples", 0});
  if (!samples_) return;
  nlohmann::json merged = nlohmann::json::array();
  for (const std::string& bytes : all) {
    for (auto& record : nlohmann::json::parse(bytes)) merged.push_back(std::move(record));
  }
  std::sort(merged.begin(), merged.end());
  samples_->Append({{"step", state_.step}, {"samples", merged}});
}

bool Trainer::Finished() const {
  if (state_.step >= static_cast<uint64_t>(config_.train.steps)) return true;
  if (OutOfPatience(config_, state_.metrics)) return true;
  // A checkpoint contains the value, so that a resumed run knows it as well. A run that has not
  // trained may continue.
  const auto error = state_.metrics.find("val_error");
  return config_.train.stop_at_accuracy > 0 && state_.step > 0 && error != state_.metrics.end() &&
         1 - error->second > config_.train.stop_at_accuracy;
}

bool Trainer::NothingToDo() const { return Finished() && folder_.finished(); }

ExitCode Trainer::ConfirmDone() {
  HL_INFO("train", "this run is finished (step ", state_.step, "): nothing to do");
  // DONE is written again, because a launcher requires a DONE of this attempt as proof that it did
  // not fail.
  if (context_.rank() == 0) folder_.WriteDone(static_cast<int64_t>(state_.step));
  return ExitCode::kFinished;
}

StepResult Trainer::RunStep(const StepScalars& flags) {
  std::optional<ops::HostWaits> counter;
  if (waits_) {
    counter.emplace();
    runner_->ObservePhases([&](const char* phase) { counter->EnterPhase(phase); });
  }
  StepResult result = runner_->Run(static_cast<int64_t>(state_.step), state_.num_updates, flags,
                                   [this] { save_->AwaitCopy(); });
  if (waits_) {
    runner_->ObservePhases(nullptr);
    waits_->Add(counter->Take());
  }
  return result;
}

void Trainer::LogWaits() const {
  if (waits_ && context_.rank() == 0) HL_INFO("train", waits_->Text());
}

StepResult Trainer::TakeStep() {
  HL_FAULT_POINT("train.step", ExitCode::kInternal);
  const int64_t begin_us = UnixMicroseconds();
  StepScalars flags = stop_policy_.OwnRequests(run_clock_.Seconds());
  flags[Scalar::kEndedSaves] = save_->under_way() && save_->ended() ? 1 : 0;
  runner_->set_largest_loss(LargestLoss(config_, state_.guard));
  StepResult result = RunStep(flags);
  try {
    GuardNonFinite(config_, state_.step + 1, result, state_.guard);
    target_guard_->NoteStep(static_cast<int64_t>(state_.step) + 1, result);
  } catch (const Error&) {
    // Every rank throws this error, from sums that all ranks have, so the save in progress can end
    // on all of them.
    AwaitSaveOfEnd();
    throw;
  }
  stop_policy_.NoteStep(result.seconds);
  ++state_.step;
  trace_.Step(static_cast<int64_t>(state_.step), begin_us, UnixMicroseconds());
  // The validation belongs to an earlier step. keep_best must not use it for this one.
  std::erase_if(state_.metrics,
                [](const auto& metric) { return metric.first.starts_with("val_"); });
  state_.metrics["loss"] = result.loss;
  state_.last_lr = result.lr;
  if (config_.train.log_samples) LogSamples(result);
  if (metrics_) metrics_->Step(static_cast<int64_t>(state_.step), result);
  const auto compared = rank_times_.Add(result.seconds - result.exposed_comm_seconds());
  if (compared && metrics_) metrics_->Ranks(static_cast<int64_t>(state_.step), *compared);
  return result;
}

ExitCode Trainer::SaveAndStop(ExitCode code) {
  SaveNow(/*must_succeed=*/true, /*final=*/false);
  trace_.Finish();
  LogWaits();
  HL_INFO("train", "stopped after step ", state_.step, " of ", config_.train.steps,
          ": saved. Start the same command again", WithResumeAuto(), " to continue.");
  return code;
}

ExitCode Trainer::Finish() {
  const auto step = static_cast<int64_t>(state_.step);
  AwaitSave();
  if (!save_policy_.IsSaved(step)) SaveNow(/*must_succeed=*/true, /*final=*/true);
  trace_.Finish();
  LogWaits();
  if (context_.rank() == 0) folder_.WriteDone(step);
  if (OutOfPatience(config_, state_.metrics))
    HL_INFO("train", "the last ", config_.train.patience, " validations had no new best ",
            config_.ckpt.validation_metric(), " (train.patience)");
  HL_INFO("train", "finished: ", Counted(step, "step"), ", ",
          HumanCount(static_cast<double>(source_->order().NumSamplesBefore(state_.step)) *
                     static_cast<double>(config_.data.seq_len)),
          " tokens, run folder ", folder_.path().string());
  return ExitCode::kFinished;
}

ExitCode Trainer::Run() {
  if (NothingToDo()) return ConfirmDone();
  try {
    return Train();
  } catch (const dist::CommError& error) {
    // If a save in progress caused both errors, its message is the cause.
    if (error.kind() == dist::CommFailure::Kind::kAborted && save_->under_way()) save_->Finish();
    throw;
  }
}

ExitCode Trainer::Train() {
  const auto total = static_cast<uint64_t>(config_.train.steps);
  if (state_.step == 0) RunValidation();
  while (!Finished()) {
    const StepResult result = TakeStep();
    if (result.scalars[Scalar::kEndedSaves] == context_.world_size()) AwaitSave();
    if (RollbackIsDue(config_, state_.step, state_.guard)) {
      RollBack();
      if (const auto code = StopPolicy::CodeOf(result.scalars)) return SaveAndStop(*code);
      continue;
    }
    const auto step = static_cast<int64_t>(state_.step);
    if (ValidationIsDue(config_.eval, source_->order(), step) || state_.step == total) {
      RunValidation();
      save_policy_.NoteValidation(step, state_.metrics);
      NotePatience(config_, state_.metrics);
    }
    if (Finished()) break;  // The final save follows, so a requeue is not needed.
    if (const auto code = StopPolicy::CodeOf(result.scalars)) return SaveAndStop(*code);
    SaveIfDue(result.scalars.any(Scalar::kSaveAndContinue));
    if (heartbeat_clock_.Seconds() > 10) Heartbeat("train");
  }
  return Finish();
}

}  // namespace halflife::train
