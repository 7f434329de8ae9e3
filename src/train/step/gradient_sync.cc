#include "train/step/gradient_sync.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/fault.h"
#include "core/pairwise_sum.h"
#include "ops/torch/tensor_views.h"

namespace halflife::train {

GradientShares::GradientShares(ParameterArena& arena, dist::ShardGroups groups, bool in_bf16)
    : arena_(arena),
      groups_(groups),
      in_bf16_(in_bf16),
      sums_(arena.layout().buckets().size()),
      reducer_(arena.layout(), groups, *this, ParallelConfig::kBucketsInFlight) {
  HL_CHECK(arena.grads_division().divides() &&
               arena.grads_division().parts == groups.num_shards() &&
               arena.layout().num_slices() == groups.num_shards() * groups.num_replicas(),
           "GradientShares needs gradients divided over the shard group and one slice per rank; "
           "there are ",
           arena.layout().num_slices(), " slices and ", arena.grads_division().parts, " parts for ",
           groups.num_shards(), " x ", groups.num_replicas(), " ranks");
}

void GradientShares::BeginMicroBatch(bool first, bool last) {
  first_ = first;
  reducer_.BeginMicroBatch(last, ops::CurrentStream(ops::RefOf(arena_.grads()).device));
}

at::Tensor GradientShares::Slot(int param) {
  const dist::ParameterLayout& layout = arena_.layout();
  const dist::Bucket& bucket = layout.buckets()[reducer_.bucket_of(param)];
  at::Tensor& gradients = sums_[reducer_.bucket_of(param)].gradients;
  if (!gradients.defined()) {
    // Zeros, because padding is summed too.
    gradients = at::zeros({bucket.end - bucket.begin}, arena_.grads().options());
    Grow(static_cast<int64_t>(gradients.nbytes()));
  }
  const dist::ParamSpec& spec = layout.specs()[param];
  return gradients.narrow(0, layout.offset(param) - bucket.begin, spec.count()).view(spec.shape);
}

void GradientShares::Grow(int64_t bytes) {
  slot_bytes_ += bytes;
  max_slot_bytes_ = std::max(max_slot_bytes_, slot_bytes_);
}

at::Tensor GradientShares::HeldRange(int bucket) const {
  const auto range = groups_.HeldOf(arena_.layout(), arena_.layout().buckets()[bucket]);
  const int64_t place = arena_.layout().PlaceOf(range.arena_begin, arena_.grads_division());
  return arena_.grads().narrow(0, place, range.count);
}

// Returns the slice that this rank updates, within the range that it holds.
at::Tensor GradientShares::UpdatedPart(int bucket, const at::Tensor& range) const {
  const dist::Bucket& of = arena_.layout().buckets()[bucket];
  const auto held = groups_.HeldOf(arena_.layout(), of),
             own = groups_.UpdatedOf(arena_.layout(), of);
  return range.narrow(0, own.arena_begin - held.arena_begin, own.count);
}

TensorRef GradientShares::Sent(int bucket) {
  BucketSum& sum = sums_[bucket];
  if (in_bf16_) {
    const at::Tensor travelling = sum.gradients.to(at::kBFloat16);
    Grow(static_cast<int64_t>(travelling.nbytes()));
    slot_bytes_ -= static_cast<int64_t>(sum.gradients.nbytes());
    sum.gradients = travelling;
  }
  return ops::RefOf(sum.gradients);
}

TensorRef GradientShares::Received(int bucket) {
  BucketSum& sum = sums_[bucket];
  const at::Tensor share = HeldRange(bucket);
  const bool in_place = first_ && !in_bf16_;
  sum.own = in_place ? share : at::empty(share.sizes(), sum.gradients.options());
  return ops::RefOf(sum.own);
}

void GradientShares::Accept(int bucket) {
  BucketSum& sum = sums_[bucket];
  if (!first_) {
    HeldRange(bucket).add_(sum.own);
  } else if (in_bf16_) {
    HeldRange(bucket).copy_(sum.own);
  }
  slot_bytes_ -= static_cast<int64_t>(sum.gradients.nbytes());
  sum = {};
}

TensorRef GradientShares::SentInReplicas(int bucket) {
  const at::Tensor range = HeldRange(bucket);
  sums_[bucket].range = in_bf16_ ? range.to(at::kBFloat16) : range;
  return ops::RefOf(sums_[bucket].range);
}

void GradientShares::AcceptInReplicas(int bucket) {
  BucketSum& sum = sums_[bucket];
  if (in_bf16_) UpdatedPart(bucket, HeldRange(bucket)).copy_(UpdatedPart(bucket, sum.range));
  sum = {};
}

// fp32 gradients that travel between ranks in bf16. Each rank's share is rounded to nearest, and so
// is the sum. The CPU adds in fp32 and rounds once. NCCL adds two shares at a time and rounds after
// each addition.
class GradientSync::Bf16Wire : public dist::GradientWire {
 public:
  // gradients [n] fp32, which must not move.
  explicit Bf16Wire(const at::Tensor& gradients)
      : gradients_(gradients),
        travelling_(at::empty_like(gradients, gradients.options().dtype(at::kBFloat16))) {}

  TensorRef Load(int64_t begin, int64_t count) override {
    const at::Tensor part = travelling_.narrow(0, begin, count);
    part.copy_(gradients_.narrow(0, begin, count));
    return ops::RefOf(part);
  }
  void Store(int64_t begin, int64_t count) override {
    gradients_.narrow(0, begin, count).copy_(travelling_.narrow(0, begin, count));
  }
  int64_t bytes() const { return static_cast<int64_t>(travelling_.nbytes()); }

 private:
  at::Tensor gradients_, travelling_;
};

class GradientSync::Sink : public ops::GradientSink {
 public:
  Sink(GradientSync& owner, int param) : owner_(owner), param_(param) {}
  Target Next() override { return owner_.Next(param_); }
  void Written() override { owner_.Written(param_); }

 private:
  GradientSync& owner_;
  int param_;
};

GradientSync::Options GradientSync::Options::Of(const RunConfig& config) {
  return {.in_bf16 = config.parallel.grad_reduce == "bf16",
          .sums_each_micro_batch = config.parallel.sums_each_micro_batch(),
          .one_by_one = config.train.cuda_graphs,
          .recomputes = config.train.recompute != "none"};
}

GradientSync::GradientSync(ParameterArena& arena, dist::ShardGroups groups, const Options& options)
    : arena_(arena),
      options_(options),
      pairwise_(arena.grads().is_cpu() && !arena.grads_division().divides() && !options.one_by_one),
      own_sums_(arena.layout().specs().size()),
      uses_(own_sums_.size(), 0) {
  const bool in_bf16 = options.in_bf16 && groups.num_shards() * groups.num_replicas() > 1;
  if (arena.grads_division().divides()) {
    shares_.emplace(arena, groups, in_bf16);
    return;
  }
  if (in_bf16) wire_ = std::make_unique<Bf16Wire>(arena.grads());
  reducer_.emplace(arena.layout(), groups, ops::RefOf(arena.grads()),
                   arena.sliced() ? dist::ReducedTo::kSlices : dist::ReducedTo::kAllRanks,
                   wire_.get());
  for (int i = 0; i < std::ssize(uses_); ++i) {
    slots_.push_back(arena.GradientView(arena.grads(), i));
    if (!pairwise_ && slots_[i].defined() && UsesOf(i) > 1)
      own_sums_[i] = at::empty_like(slots_[i]);
  }
}

GradientSync::~GradientSync() {
  if (parameters_ == nullptr) return;
  for (int i = 0; i < parameters_->size(); ++i)
    if (!arena_.layout().frozen(i)) ops::SetGradientSink(parameters_->tensor(i), nullptr);
}

void GradientSync::Attach(model::ParameterSet& parameters) {
  HL_CHECK(parameters_ == nullptr, "GradientSync is attached to a second set of parameters");
  parameters_ = &parameters;
  for (int i = 0; i < parameters.size(); ++i)
    if (!arena_.layout().frozen(i))
      ops::SetGradientSink(parameters.tensor(i), std::make_unique<Sink>(*this, i));
}

void GradientSync::BeginMicroBatch(int64_t index, int64_t count) {
  index_ = index;
  count_ = count;
  std::ranges::fill(uses_, 0);
  if (shares_) shares_->BeginMicroBatch(own_index() == 0, own_index() == own_count() - 1);
  reduces_ = reducer_ && own_index() == own_count() - 1;
  if (reduces_) reducer_->BeginStep(ops::CurrentStream(ops::RefOf(arena_.grads()).device));
  if (!pairwise_) return;
  while (std::ssize(levels_) < NumLevels(own_count())) {
    const at::Tensor flat = at::empty_like(arena_.grads());
    std::vector<at::Tensor>& level = levels_.emplace_back();
    for (int i = 0; i < std::ssize(uses_); ++i) level.push_back(arena_.GradientView(flat, i));
  }
}

void GradientSync::BeginRecorded() {
  HL_CHECK(
      !pairwise_ && !shares_ && !options_.sums_each_micro_batch,
      "a recorded micro-batch is added to gradients that are summed pairwise, sliced, or summed "
      "over ranks after each micro-batch");
  // Any micro-batch but the first and the last adds to the arena and sends nothing.
  BeginMicroBatch(/*index=*/1, /*count=*/3);
}

int GradientSync::UsesOf(int param) const {
  return options_.recomputes ? arena_.layout().specs()[param].readers : 1;
}

ops::GradientSink::Target GradientSync::Next(int param) {
  HL_FAULT_POINT("train.hook", ExitCode::kInternal);
  HL_CHECK(uses_[param] < UsesOf(param), "parameter ", arena_.layout().specs()[param].name,
           " received its gradient ", uses_[param] + 1, " times in one backward, not ",
           UsesOf(param));
  const bool again = uses_[param] > 0;
  if (shares_) return {.sum = shares_->Slot(param), .added = again};
  if (own_sums_[param].defined()) return {.sum = own_sums_[param], .added = again};
  return {.sum = slots_[param], .added = again || (!pairwise_ && own_index() > 0)};
}

void GradientSync::Written(int param) {
  if (++uses_[param] < UsesOf(param)) return;
  if (shares_) shares_->MarkReady(param);
  if (own_sums_[param].defined())
    ops::GradientSink::Target{.sum = slots_[param], .added = own_index() > 0}.Take(
        own_sums_[param]);
  if (pairwise_)
    JoinPairwise(slots_[param], own_index(), own_count(),
                 [&](int level) { return levels_[level][param]; });
  if (reduces_) reducer_->MarkReady(param);
}

void GradientSync::MarkComputed(int param) {
  Next(param);
  Written(param);
}

void GradientSync::EndMicroBatch() {
  std::string missing;
  for (int i = 0; i < std::ssize(uses_); ++i) {
    if (uses_[i] < UsesOf(i) && !arena_.layout().frozen(i))
      missing += " " + arena_.layout().specs()[i].name;
  }
  HL_CHECK(missing.empty(), "backward gave no gradient to:", missing);
  if (shares_) shares_->FinishMicroBatch();
}

void GradientSync::JoinMicroBatch() {
  HL_CHECK(options_.sums_each_micro_batch, "JoinMicroBatch without sums_each_micro_batch");
  Finish();
  while (std::ssize(joined_levels_) < NumLevels(count_))
    joined_levels_.push_back(at::empty_like(arena_.grads()));
  JoinPairwise(arena_.grads(), index_, count_, [this](int level) { return joined_levels_[level]; });
}

void GradientSync::SumReplayed() {
  reducer_->BeginStep(ops::CurrentStream(ops::RefOf(arena_.grads()).device));
  reducer_->MarkAllReady();
}

void GradientSync::Finish() {
  if (!reducer_) return;
  reducer_->Finish();
}

double GradientSync::TakeWaitSeconds() {
  return shares_ ? shares_->TakeWaitSeconds() : reducer_->TakeWaitSeconds();
}

int64_t GradientSync::wire_bytes() const { return wire_ ? wire_->bytes() : 0; }

void JoinPairwise(const at::Tensor& term, int64_t index, int64_t count,
                  const std::function<at::Tensor(int level)>& level_of) {
  const bool last = index == count - 1;
  const int carries = NumCarries(index);
  for (int level = 0; level < NumLevels(count); ++level) {
    const bool full = (index >> level & 1) != 0;
    if (full && (last || level < carries)) term.add_(level_of(level));
  }
  if (!last) level_of(carries).copy_(term);
}

}  // namespace halflife::train
