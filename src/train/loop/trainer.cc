#include "train/loop/trainer.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "ckpt/agreement.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/heap.h"
#include "core/human.h"
#include "core/log.h"
#include "core/nearest.h"
#include "core/version.h"
#include "train/config/plan.h"
#include "train/loop/stop_flags.h"

namespace halflife::train {
namespace {

// Of a time limit, kept back for a save whose length is not known yet.
constexpr double kLeastSaveSeconds = 5;

RunConfig Resolve(RunConfig config, const data::Dataset& dataset) {
  const int64_t vocab = dataset.info().vocab_size;
  if (config.model.vocab_size == 0) config.model.vocab_size = vocab;
  HL_CHECK_AS(ExitCode::kUsage, config.model.vocab_size >= vocab, "model.vocab_size ",
              config.model.vocab_size, " is smaller than the dataset's vocabulary of ", vocab, " (",
              dataset.folder().string(), "); leave it out to take the dataset's");
  return config;
}

void SetThreads(const RunConfig& config, const dist::RankContext& context) {
  int threads = config.train.threads;
  // OMP_NUM_THREADS is LibTorch's own word for it: a launcher that set it is believed
  if (threads == 0 && std::getenv("OMP_NUM_THREADS") != nullptr) return;
  if (threads == 0) {
    threads = std::max<int>(
        1, static_cast<int>(std::thread::hardware_concurrency()) / context.local_size());
  }
  at::set_num_threads(threads);
}

data::TokenSourceConfig SourceConfig(const RunConfig& config, const dist::RankContext& context) {
  return {.seq_len = config.data.seq_len,
          .micro_batch = config.train.micro_batch,
          .global_batch = config.train.global_batch,
          .dp_rank = context.rank(),
          .dp_size = context.world_size(),
          .seed = config.train.seed,
          .prefetch = config.data.prefetch};
}

// As Markdown shows it letter by letter.
std::string Verbatim(const std::string& text) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) out += "    " + line + "\n";
  return out;
}

}  // namespace

Trainer::Trainer(RunConfig config, RunFolder folder, dist::RankContext& context,
                 const TrainOptions& options)
    : config_(std::move(config)),
      context_(context),
      device_(ChooseDevice(config_.train.device, context.local_rank())),
      folder_(std::move(folder)),
      dataset_(data::Dataset::Open(config_.data.path)),
      model_((config_ = Resolve(std::move(config_), dataset_)).model),
      sample_text_(options.sample_text) {
  const std::filesystem::path& run_dir = folder_.path();
  log::Init(
      {.rank = context.rank(),
       .world_size = context.world_size(),
       .console_level = log::ParseLevel(config_.log.level),
       .file =
           run_dir / "logs" /
           Concat("r",
                  std::string(5 - std::min<size_t>(5, std::to_string(context.rank()).size()), '0'),
                  context.rank(), ".log")});
  RequireMemory(config_, model_, SceneHere(config_, context.world_size(), context.local_size()),
                context.rank());
  SetThreads(config_, context);
  PrepareHeap();
  RequireSameDevice();
  context.UseDevice(device_);
  const at::ScalarType compute = config_.train.precision == "bf16" ? at::kBFloat16 : at::kFloat;
  arena_ = std::make_unique<ParameterArena>(
      model_.parameters(),
      ParameterArena::Config{.device = ToTorch(device_),
                             .compute_dtype = compute,
                             .layout = {.first_bucket_bytes = config_.parallel.first_bucket_bytes,
                                        .bucket_bytes = config_.parallel.bucket_bytes,
                                        .num_slices = context.world_size()}});
  source_ = std::make_unique<data::TokenSource>(dataset_, data::Split::kTrain,
                                                SourceConfig(config_, context));
  store_ = std::make_unique<ckpt::CheckpointStore>(run_dir / "ckpt", context.control(),
                                                   config_.ckpt.store);
  if (context.rank() == 0) store_->SetOwnershipCheck([this] { folder_.CheckStillOwner(); });
  Resume(options);
  WriteRunFiles();
  runner_ = std::make_unique<StepRunner>(config_, model_, *arena_, *source_, context_, device_);
  folder_.Keep();
}

Trainer::~Trainer() = default;

// With device 'auto' a host without a visible GPU would wait for the others in the wrong collective.
void Trainer::RequireSameDevice() const {
  const std::string own = device_.is_cuda() ? "cuda" : "cpu";
  const auto all = dist::AllGatherBytes(context_.control(), own, {"device", 0});
  for (size_t rank = 0; rank < all.size(); ++rank) {
    HL_CHECK_AS(ExitCode::kEnvironment, all[rank] == all[0], "rank 0 computes on ", all[0],
                ", rank ", rank, " on ", all[rank],
                "; set train.device, or make the same devices visible on all hosts");
  }
}

ckpt::StepState Trainer::CurrentState(bool final) const {
  ckpt::StepState state = state_;
  state.data.order_version = data::kOrderVersion;
  state.data.seed = config_.train.seed;
  state.data.next_sample = state.step * config_.train.global_batch;
  state.data.samples = state.data.next_sample;
  state.data.epoch = state.data.next_sample / source_->num_windows();
  state.data.tokens = state.data.samples * config_.data.seq_len;
  state.data.dataset = dataset_.info().hash;
  state.data.seq_len = static_cast<uint32_t>(config_.data.seq_len);
  state.rng_seed = config_.train.seed;
  state.run_config_text = ToText(config_);
  state.trajectory = TrajectoryFields(config_);
  state.trajectory["data.hash"] = ToHex(dataset_.info().hash);
  state.trajectory["data.order_version"] = Concat(data::kOrderVersion);
  state.model_family = config_.model.mixer.name;
  state.model_config_json = model::ToJson(config_.model);
  state.mesh = {.world = context_.world_size(), .dp = context_.world_size()};
  const BuildInfo build = GetBuildInfo();
  state.versions.halflife = build.version;
  state.versions.git_hash = build.git_hash;
  state.versions.git_dirty = build.git_dirty;
  state.versions.torch = TORCH_VERSION;
  state.final = final;
  return state;
}

ckpt::ArenaView Trainer::HostArena() {
  host_copies_ = {arena_->main().cpu(), arena_->adam_m().cpu(), arena_->adam_v().cpu()};
  return {&arena_->layout(), host_copies_[0].mutable_data_ptr<float>(),
          host_copies_[1].mutable_data_ptr<float>(), host_copies_[2].mutable_data_ptr<float>()};
}

void Trainer::FinishLoad() {
  const c10::AutoGradMode no_grad(false);
  at::Tensor* arrays[] = {&arena_->main(), &arena_->adam_m(), &arena_->adam_v()};
  for (int i = 0; i < 3; ++i) {
    if (!arrays[i]->is_cpu()) arrays[i]->copy_(host_copies_[i]);
  }
  host_copies_.clear();
  arena_->RefreshComputeCopy();
}

// A name that means nothing would let nothing differ, in silence.
void Trainer::CheckAllowed(const std::vector<std::string>& names,
                           const ckpt::StepState& expected) const {
  const std::vector<std::string> compared = ckpt::ComparedFields(
      {.model_config_json = expected.model_config_json, .trajectory = expected.trajectory});
  const std::map<std::string, std::string> fields = FlatFields(config_);
  for (const std::string& name : names) {
    if (std::ranges::count(compared, name) > 0) continue;
    HL_CHECK_AS(ExitCode::kUsage, fields.contains(name), "--allow-change '", name,
                "' is no field that a checkpoint is compared by", DidYouMean(name, compared),
                "\nThese are: ", Join(compared, ", "));
    if (context_.rank() == 0)
      HL_INFO("train", "--allow-change ", name, ": this field may differ without it");
  }
}

void Trainer::Resume(const TrainOptions& options) {
  // The position in the data is step x global_batch windows of seq_len in the seed's order.
  for (const char* fixed :
       {"train.global_batch", "data.seq_len", "train.seed", "data.hash", "data.order_version"}) {
    HL_CHECK_AS(ExitCode::kUsage,
                std::find(options.allow_change.begin(), options.allow_change.end(), fixed) ==
                    options.allow_change.end(),
                "--allow-change ", fixed,
                ": this field decides which samples were already seen; "
                "a run that changes it would skip or repeat some. Start another run instead");
  }
  const ckpt::StepState expected = CurrentState(false);
  CheckAllowed(options.allow_change, expected);
  const auto loaded = store_->Load(options.resume,
                                   {.model_family = expected.model_family,
                                    .model_config_json = expected.model_config_json,
                                    .trajectory = expected.trajectory,
                                    .allow_change = options.allow_change},
                                   HostArena());
  if (loaded) {
    FinishLoad();
    state_ = loaded->state;
    damage_ = loaded->damage;
    state_.parent_step = loaded->path.filename().string();
    HL_INFO("train", "resumed from ", loaded->path.string(), ", step ", state_.step);
  } else {
    host_copies_.clear();
    Start(options);
  }
  HL_CHECK_AS(ExitCode::kUsage, state_.step <= static_cast<uint64_t>(config_.train.steps),
              "the checkpoint is at step ", state_.step, ", past train.steps ", config_.train.steps,
              "; set train.steps to ", state_.step, " or more");
  const bool own_step = loaded && std::filesystem::weakly_canonical(loaded->path).parent_path() ==
                                      std::filesystem::weakly_canonical(folder_.path() / "ckpt");
  last_saved_step_ = own_step ? static_cast<int64_t>(state_.step) : -1;
  source_->Seek(state_.step * config_.train.global_batch);
}

void Trainer::Start(const TrainOptions& options) {
  arena_->Initialise(config_.train.seed);
  state_.run_id = dist::BroadcastBytes(context_.control(), RandomHex(16), 0, {"run_id", 0});
  if (options.init_from == nullptr) return;
  const WarmStartReport report = WarmStart(*options.init_from, options.init_rules, *arena_);
  HL_INFO("train", "started from ", options.init_from->where(), ": ", report.num_loaded,
          " tensors (", HumanCount(static_cast<double>(report.num_elements)), " elements) loaded, ",
          report.num_kept, " kept at their initial value, ", report.num_unused, " unused");
}

std::unique_ptr<EventLog> Trainer::OpenEvents() const {
  if (!config_.log.tensorboard || NothingToDo()) return nullptr;
  const auto step = static_cast<int64_t>(state_.step);
  try {
    return std::make_unique<EventLog>(folder_.path() / "events", step == 0 ? 0 : step + 1);
  } catch (const Error& error) {  // as for the heartbeat: training is worth more than its pictures
    HL_WARN("train", "no TensorBoard events: ", error.message());
    return nullptr;
  }
}

void Trainer::DescribeRun() {
  const BuildInfo build = GetBuildInfo();
  metrics_->Describe(
      "run/description",
      Verbatim(Concat(
          "model    ", PlanSummary(config_, model_, context_.world_size()), "\ndata     ",
          dataset_.folder().string(), ", hash ", ToHex(dataset_.info().hash), "\ndevice   ",
          device_.is_cuda() ? "cuda" : "cpu", ", ", config_.train.precision, "\nbuild    ",
          build.version, " ", build.git_hash, build.git_dirty ? " (modified)" : "", "\nattempt  ",
          folder_.attempt(), state_.step == 0 ? "" : Concat(", from step ", state_.step))));
  metrics_->Describe("run/config", Verbatim(ToText(config_)));
}

void Trainer::WriteRunFiles() {
  if (context_.rank() != 0) return;
  folder_.WriteConfig(ToText(config_));
  folder_.CopyTokenizer(dataset_);
  if (state_.step < static_cast<uint64_t>(config_.train.steps)) folder_.RemoveDone();
  Heartbeat("start");
  const model::FlopCount flops = model_.FlopsPerToken(config_.data.seq_len);
  metrics_ = std::make_unique<Metrics>(
      MetricsConfig{.file = folder_.path() / "metrics.jsonl",
                    .attempt = folder_.attempt(),
                    .total_steps = config_.train.steps,
                    .log_every = config_.train.log_every,
                    .tokens_per_step = config_.train.global_batch * config_.data.seq_len,
                    .world_size = context_.world_size(),
                    .flops_per_token_6p = 6.0 * model_.CountParameters().total(),
                    .flops_per_token_full = 3.0 * (flops.matmul + flops.mixing),
                    .peak = FindComputePeak(device_),
                    .device = device_},
      OpenEvents());
  DescribeRun();
  for (const std::string& banner : damage_) {
    metrics_->Damage(static_cast<int64_t>(state_.step), banner);
  }
  if (config_.train.log_samples) {
    samples_ =
        std::make_unique<JsonlWriter>(folder_.path() / "samples.jsonl", ExitCode::kEnvironment);
  }
  HL_INFO("train", PlanSummary(config_, model_, context_.world_size()));
}

StepScalars Trainer::OwnRequests() {
  StepScalars flags;
  flags[Scalar::kSaveAndRequeue] = StopFlags::requeue();
  flags[Scalar::kSaveAndContinue] = StopFlags::TakeSave();
  flags[Scalar::kSaveAndStop] = StopFlags::stop();
  // What may still come before the save is done: this step and a slower one, a validation, the save itself.
  const double ahead = 2 * longest_step_seconds_ + last_validation_seconds_ +
                       std::max(kLeastSaveSeconds, 2 * last_save_seconds_);
  const double limit = config_.train.time_limit_s;
  flags[Scalar::kTimeLimit] = limit > 0 && run_clock_.Seconds() + ahead > limit;
  return flags;
}

void Trainer::GuardNonFinite(const StepResult& result) {
  ckpt::GuardState& guard = state_.guard;
  if (!result.skipped) {
    guard.consecutive_skips = 0;
    return;
  }
  ++guard.skipped;
  ++guard.consecutive_skips;
  const bool stop = config_.train.on_nonfinite == "stop" ||
                    guard.consecutive_skips > static_cast<uint32_t>(config_.train.max_skips);
  HL_CHECK_AS(ExitCode::kNonFinite, !stop, "step ", state_.step + 1, ": ", result.nonfinite,
              " is not finite (", guard.consecutive_skips, " in a row; train.on_nonfinite is '",
              config_.train.on_nonfinite, "', train.max_skips ", config_.train.max_skips,
              "); no checkpoint of this step was written; try a lower optimizer.lr or ",
              config_.optimizer.clip_norm > 0
                  ? "a smaller optimizer.clip_norm"
                  : "clip the gradient (optimizer.clip_norm is 0: off; 1 is usual)");
}

void Trainer::Heartbeat(const char* phase) {
  heartbeat_clock_.Restart();
  if (context_.rank() != 0) return;
  try {
    folder_.WriteHeartbeat(static_cast<int64_t>(state_.step), phase);
  } catch (
      const Error& error) {  // a full disk must not end a run that the save policy would let live
    HL_WARN("train", "no heartbeat: ", error.message());
  }
}

void Trainer::RunValidation() {
  const Stopwatch watch;
  Heartbeat("validate");
  const eval::ValidationResult result = eval::Validate(model_, dataset_,
                                                       {.seq_len = config_.data.seq_len,
                                                        .num_windows = config_.eval.windows,
                                                        .batch = config_.train.micro_batch},
                                                       ToTorch(device_), context_.control());
  state_.metrics["val_loss"] = result.loss;
  if (metrics_) metrics_->Validation(static_cast<int64_t>(state_.step), result);
  ShowSampleText();
  last_validation_seconds_ = watch.Seconds();
}

void Trainer::ShowSampleText() {
  if (!metrics_ || !metrics_->shows_texts() || !sample_text_) return;
  metrics_->Text(static_cast<int64_t>(state_.step), "eval/sample", Verbatim(sample_text_(model_)));
}

void Trainer::Save(bool must_succeed, bool final) {
  const Stopwatch watch;
  Heartbeat("save");
  try {
    const ckpt::SaveReport report = store_->Save(HostArena(), CurrentState(final));
    last_saved_step_ = static_cast<int64_t>(state_.step);
    failed_saves_ = 0;
    if (metrics_) metrics_->Save(last_saved_step_, report.bytes, watch.Seconds());
  } catch (const Error& error) {
    // every rank throws the same decision; the older steps are untouched
    ++failed_saves_;
    const bool stop = must_succeed || config_.ckpt.on_error == "stop" || failed_saves_ >= 2 ||
                      error.code() != ExitCode::kCheckpointIo;
    if (stop) throw;
    HL_WARN("ckpt", "saving step ", state_.step, " failed, training goes on: ", error.message());
  }
  host_copies_.clear();
  last_save_seconds_ = watch.Seconds();
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

std::optional<ExitCode> Trainer::Decide(const StepScalars& scalars) {
  const bool requeue = scalars.any(Scalar::kSaveAndRequeue) || scalars.any(Scalar::kTimeLimit);
  const bool stop = scalars.any(Scalar::kSaveAndStop);
  const bool done = static_cast<int64_t>(state_.step) >= config_.train.steps;
  if (done) return std::nullopt;  // the final save follows; there is nothing to requeue for
  if (requeue || stop) {
    Save(/*must_succeed=*/true, /*final=*/false);
    HL_INFO("train", "stopped after step ", state_.step, " of ", config_.train.steps,
            ": saved; start the same command again to go on");
    return stop ? ExitCode::kInterrupted : ExitCode::kRequeue;
  }
  const bool due = config_.ckpt.every > 0 && state_.step % config_.ckpt.every == 0;
  if (due || scalars.any(Scalar::kSaveAndContinue)) Save(/*must_succeed=*/false, /*final=*/false);
  return std::nullopt;
}

bool Trainer::NothingToDo() const {
  return state_.step >= static_cast<uint64_t>(config_.train.steps) && folder_.finished();
}

ExitCode Trainer::Run() {
  const auto total = static_cast<uint64_t>(config_.train.steps);
  if (NothingToDo()) {
    HL_INFO("train", "this run is finished (step ", state_.step, "): nothing to do");
    // anew: to a launcher only a DONE written in this life says that the life did not fail
    if (context_.rank() == 0) folder_.WriteDone(config_.train.steps);
    return ExitCode::kFinished;
  }
  if (state_.step == 0) RunValidation();
  while (state_.step < total) {
    HL_FAULT_POINT("train.step", ExitCode::kInternal);
    const StepResult result =
        runner_->Run(static_cast<int64_t>(state_.step), state_.num_updates, OwnRequests());
    GuardNonFinite(result);
    ++state_.step;
    state_.metrics.erase(
        "val_loss");  // it belonged to an earlier step: keep_best must not see it as this one's
    longest_step_seconds_ = std::max(longest_step_seconds_, result.seconds);
    state_.last_lr = result.lr;
    state_.metrics["loss"] = result.loss;
    if (config_.train.log_samples) LogSamples(result);
    if (metrics_) metrics_->Step(static_cast<int64_t>(state_.step), result);
    const bool last = state_.step == total;
    const bool validate = config_.eval.every > 0 && state_.step % config_.eval.every == 0;
    if (validate || last) RunValidation();
    if (const auto code = Decide(result.scalars)) return *code;
    if (heartbeat_clock_.Seconds() > 10) Heartbeat("train");
  }
  if (last_saved_step_ != config_.train.steps) Save(/*must_succeed=*/true, /*final=*/true);
  if (context_.rank() == 0) folder_.WriteDone(config_.train.steps);
  HL_INFO("train", "finished: ", config_.train.steps, " steps, ",
          HumanCount(static_cast<double>(state_.step * config_.train.global_batch) *
                     static_cast<double>(config_.data.seq_len)),
          " tokens, run folder ", folder_.path().string());
  return ExitCode::kFinished;
}

}  // namespace halflife::train
