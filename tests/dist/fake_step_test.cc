// A step of every ZeRO stage on the fake GPUs of fake_gpu/world.h: the program's own sums of
// gradients and gathers of parameters, and exchanges of shared rows, in the order in which a
// trainer calls them. All values are small integers, so the definition of a step gives the bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <list>
#include <map>
#include <mutex>

#include "dist/fake_gpu/cuda_runtime.h"
#include "dist/fake_gpu/world.h"
#include "dist/gradient_reducer.h"
#include "dist/nccl_communicator.h"
#include "dist/parameter_gather.h"
#include "dist/unit_gather.h"

namespace halflife::dist {
namespace {

using fake::Outcome;
using fake::Rank;

constexpr int kBlocks = 5, kUnits = kBlocks + 2, kSteps = 2, kMicroBatches = 2;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The groups whose stream waits a test leaves out.
enum class Forgets : uint8_t { kNothing, kGradients, kParameters, kRows };

struct Case {
  int ranks = 2, stage = 0;
  int shards = 2;  // ranks of a shard group
  int sp = 1;      // ranks that share a row
  Forgets forgets = Forgets::kNothing;
  bool ordered = false;  // sums in the order of ranks
};

// Two parameters for each unit, and one in fp32 that belongs to none.
std::vector<ParamSpec> Specs() {
  std::vector<ParamSpec> specs;
  for (int unit = 0; unit < kUnits; ++unit) {
    specs.push_back({.name = "matrix" + std::to_string(unit), .shape = {unit + 3, 37}});
    specs.push_back({.name = "vector" + std::to_string(unit), .shape = {11}});
  }
  specs.push_back({.name = "norm", .shape = {29}, .region = Region::kFp32});
  return specs;
}

int UnitOf(int param) { return param < 2 * kUnits ? param / 2 : -1; }

ParameterLayout LayoutOf(const Case& c) {
  std::vector<int> units;
  for (int param = 0; param < 2 * kUnits + 1; ++param) units.push_back(UnitOf(param));
  return ParameterLayout(Specs(), {.first_bucket_bytes = 1024,
                                   .bucket_bytes = 1024,
                                   .num_slices = c.ranks,
                                   .units = c.stage == 3 ? units : std::vector<int>()});
}

// Returns the parameters that a layer reads. The norm is read by the first block.
std::vector<int> ParamsOf(int unit) {
  std::vector<int> params = {2 * unit, 2 * unit + 1};
  if (unit == 1) params.push_back(2 * kUnits);
  return params;
}

// --- the definition ---

struct Moment {
  int step, micro, unit;
};

// Returns the value that a rank sends to the next rank of its row.
float SentState(const Moment& at, int rank) {
  return static_cast<float>((10 * at.unit + 3 * rank + at.step + at.micro) % 32);
}
float ReceivedState(const Moment& at, int rank, int sp) {
  return rank % sp == 0 ? 0 : SentState(at, rank - 1);
}
float Gradient(float weight, float received, const Moment& at, int rank, int64_t element) {
  return std::fmod(
      3 * weight + 7 * received + static_cast<float>(rank + 2 * at.micro + element % 5), 64.0F);
}
float Updated(float weight, float sum) { return std::fmod(weight + sum, 1009.0F); }
float InitialWeight(int64_t element) { return static_cast<float>(element % 101); }

// By step: weights before it, and its sums of gradients. By element of the arena.
struct Expected {
  std::vector<std::vector<float>> weights, sums;
  std::vector<double> squares;
};

Expected Define(const Case& c, const ParameterLayout& layout) {
  Expected expected;
  std::vector<float> weights(layout.num_elements());
  for (const Fragment& part : layout.AllFragments())
    for (int64_t i = part.arena_begin; i < part.arena_begin + part.end; ++i)
      weights[i] = InitialWeight(i);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> sums(weights.size());
    for (int unit = 0; unit < kUnits; ++unit)
      for (const int param : ParamsOf(unit))
        for (int64_t i = layout.offset(param);
             i < layout.offset(param) + layout.specs()[param].count(); ++i)
          for (int micro = 0; micro < kMicroBatches; ++micro)
            for (int rank = 0; rank < c.ranks; ++rank) {
              const Moment at = {step, micro, unit};
              sums[i] += Gradient(weights[i], ReceivedState(at, rank, c.sp), at, rank, i);
            }
    double squares = 0;
    for (const float sum : sums) squares += static_cast<double>(sum) * sum;
    expected.weights.push_back(weights);
    expected.sums.push_back(sums);
    expected.squares.push_back(squares);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = Updated(weights[i], sums[i]);
  }
  expected.weights.push_back(weights);
  return expected;
}

// --- a group whose stream waits are missing ---

class ForgetfulOperation final : public Operation {
 public:
  ForgetfulOperation(Work work, std::vector<Work>& kept) : work_(std::move(work)), kept_(kept) {}
  bool Done() override { return work_.Done(); }
  void WaitHost() override { work_.WaitHost(); }
  // Keeps the work, whose destructor would wait on the host.
  void WaitOn(cudaStream_t) override { kept_.push_back(std::move(work_)); }

 private:
  Work work_;
  std::vector<Work>& kept_;
};

class ForgetfulGroup final : public Communicator {
 public:
  explicit ForgetfulGroup(Communicator& comm) : comm_(comm) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  const std::string& name() const override { return comm_.name(); }
  Work AllReduce(TensorRef x, ReduceOp op, OpTag tag, cudaStream_t producer) override {
    return Wrap(comm_.AllReduce(x, op, tag, producer));
  }
  Work ReduceScatter(TensorRef in, TensorRef out, ReduceOp op, OpTag tag,
                     cudaStream_t producer) override {
    return Wrap(comm_.ReduceScatter(in, out, op, tag, producer));
  }
  Work AllGather(TensorRef in, TensorRef out, OpTag tag, cudaStream_t producer) override {
    return Wrap(comm_.AllGather(in, out, tag, producer));
  }
  Work AllGatherV(TensorRef in, TensorRef out, std::span<const int64_t> counts, OpTag tag,
                  cudaStream_t producer) override {
    return Wrap(comm_.AllGatherV(in, out, counts, tag, producer));
  }
  Work AllToAll(TensorRef in, TensorRef out, OpTag tag, cudaStream_t producer) override {
    return Wrap(comm_.AllToAll(in, out, tag, producer));
  }
  Work AllToAllV(TensorRef in, TensorRef out, std::span<const int64_t> to,
                 std::span<const int64_t> from, OpTag tag, cudaStream_t producer) override {
    return Wrap(comm_.AllToAllV(in, out, to, from, tag, producer));
  }
  Work Broadcast(TensorRef x, int root, OpTag tag, cudaStream_t producer) override {
    return Wrap(comm_.Broadcast(x, root, tag, producer));
  }
  Work SendRecv(TensorRef send, int to, TensorRef recv, int from, OpTag tag,
                cudaStream_t producer) override {
    return Wrap(comm_.SendRecv(send, to, recv, from, tag, producer));
  }
  Work Barrier(OpTag tag) override { return Wrap(comm_.Barrier(tag)); }
  void Batch(const std::function<void()>& issue) override { comm_.Batch(issue); }
  std::unique_ptr<Communicator> Split(int color, int key, std::string name,
                                      GroupRole role) override {
    return comm_.Split(color, key, std::move(name), role);
  }
  void Abort(const std::string& cause) noexcept override { comm_.Abort(cause); }

 private:
  Work Wrap(Work work) {
    return Work(std::make_shared<ForgetfulOperation>(std::move(work), kept_));
  }
  Communicator& comm_;
  std::vector<Work> kept_;
};

// A group of the job, forgetful if the case says so.
class JobGroup {
 public:
  JobGroup() = default;
  JobGroup(std::unique_ptr<Communicator> comm, bool forgets) : comm_(std::move(comm)) {
    if (forgets) forgetful_ = std::make_unique<ForgetfulGroup>(*comm_);
  }
  Communicator& operator*() const { return forgetful_ ? *forgetful_ : *comm_; }

 private:
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<ForgetfulGroup> forgetful_;
};

// --- memory ---

// Buffers that are reused as soon as they are freed, like those of an allocator whose blocks belong
// to a stream. A freed buffer becomes NaN in the order of the stream.
class StreamMemory {
 public:
  StreamMemory(Rank& rank, cudaStream_t stream) : rank_(rank), stream_(stream) {}
  float* Allocate(int64_t count, float value) {
    auto found = std::ranges::find_if(buffers_, [&](const Buffer& buffer) {
      return !buffer.used && std::ssize(buffer.values) == count;
    });
    if (found == buffers_.end())
      found = buffers_.insert(buffers_.end(), Buffer{std::vector<float>(count)});
    found->used = true;
    Fill(found->values.data(), count, value);
    return found->values.data();
  }
  void Free(float* data) {
    const auto found = std::ranges::find_if(
        buffers_, [&](const Buffer& buffer) { return buffer.values.data() == data; });
    found->used = false;
    Fill(data, std::ssize(found->values), kNaN);
  }
  void Fill(float* data, int64_t count, float value) {
    rank_.Compute(
        stream_, 1, [=] { std::fill_n(data, count, value); }, 8);
  }

 private:
  struct Buffer {
    std::vector<float> values;
    bool used = false;
  };
  Rank& rank_;
  const cudaStream_t stream_;
  std::list<Buffer> buffers_;
};

class Slots final : public UnitMemory {
 public:
  Slots(Rank& rank, StreamMemory& memory, const ParameterLayout& layout)
      : rank_(rank), memory_(memory), layout_(layout), units_(kUnits) {
    int64_t largest = 0;
    for (size_t index = 0; index < layout.buckets().size(); ++index) {
      const Bucket& bucket = layout.buckets()[index];
      const int of_bucket = UnitOf(bucket.params[0]);
      if (of_bucket < 0) continue;
      Unit& unit = units_[of_bucket];
      if (unit.buckets.empty()) unit.begin = bucket.begin;
      unit.buckets.push_back(static_cast<int>(index));
      largest = std::max(largest, bucket.end - unit.begin);
      end_ = std::max(end_, bucket.end);
    }
    slots_.resize(prefetch() + 2, std::vector<float>(largest, kNaN));
  }
  int64_t end() const { return end_; }
  // Returns the parameter in the slot of its unit.
  const float* Find(int param) {
    Unit& unit = units_[UnitOf(param)];
    return unit.slot < 0 ? nullptr : slots_[unit.slot].data() + layout_.offset(param) - unit.begin;
  }

  int num_units() const override { return kUnits; }
  int prefetch() const override { return 1; }
  const std::vector<int>& buckets_of(int unit) const override { return units_[unit].buckets; }
  TensorRef BucketIn(int slot, int unit, int index) const override {
    const Bucket& bucket = layout_.buckets()[index];
    TensorRef ref = Ref(const_cast<float*>(slots_[slot].data()) + bucket.begin - units_[unit].begin,
                        bucket.end - bucket.begin);
    ref.device = rank_.device();
    return ref;
  }
  void Place(int unit, int slot) override { units_[unit].slot = slot; }
  void Release(int unit, int slot) override {
    units_[unit].slot = -1;
    memory_.Fill(slots_[slot].data(), std::ssize(slots_[slot]), kNaN);
  }

 private:
  struct Unit {
    int64_t begin = 0;
    std::vector<int> buckets;
    int slot = -1;
  };
  Rank& rank_;
  StreamMemory& memory_;
  const ParameterLayout& layout_;
  std::vector<Unit> units_;
  std::vector<std::vector<float>> slots_;
  int64_t end_ = 0;
};

// --- a rank of the job ---

class Job final : private ShareMemory {
 public:
  Job(Rank& rank, const Case& c, const Expected& expected)
      : rank_(rank),
        c_(c),
        expected_(expected),
        layout_(LayoutOf(c)),
        world_(MakeNcclCommunicator(rank.control(), rank.device(), "world",
                                    {.timeout_s = 20, .init_timeout_s = 20})),
        memory_(rank, stream_) {
    if (c.ordered) world_->SumInOrder(fake::OrderedSumOf(rank));
    const int me = rank.number(), replicas = c.ranks / c.shards;
    const auto split = [&](int color, const char* name, GroupRole role, Forgets kind) {
      return JobGroup(world_->Split(color, me, Concat(name, "_", color), role), c.forgets == kind);
    };
    shard_ = split(me / c.shards, "shard", GroupRole::kGradients, Forgets::kGradients);
    if (replicas > 1)
      replica_ = split(me % c.shards, "replica", GroupRole::kGradients, Forgets::kGradients);
    // The gathers of stages 1 and 2 share the groups of the sums in a trainer. Here they have their
    // own, so that each kind of wait can be left out by itself.
    units_group_ = split(me / c.shards, "units", GroupRole::kParameters, Forgets::kParameters);
    if (replicas > 1)
      unit_replicas_ = split(me % c.shards, "held", GroupRole::kParameters, Forgets::kParameters);
    rows_ = split(me / c.sp, "rows", GroupRole::kRows, Forgets::kRows);
    sums_.emplace(*shard_, replicas > 1 ? &*replica_ : nullptr);
    if (c.stage == 0) sums_.emplace(*shard_);
    MakeArrays();
    MakeGathers(replicas > 1 ? &*unit_replicas_ : nullptr);
  }

  void Train() {
    for (step_ = 0; step_ < kSteps; ++step_) {
      if (c_.stage < 2) memory_.Fill(grads_.data(), std::ssize(grads_), 0);
      for (int micro = 0; micro < kMicroBatches; ++micro) MicroBatch(micro);
      if (reducer_) reducer_->Finish();
      ReadNorm();
      Update();
    }
    for (int unit = 0; unit < kUnits; ++unit) Forward({step_, 0, unit});
    cudaDeviceSynchronize();
  }
  int num_wrong() const { return wrong_; }

 private:
  TensorRef OnGpu(float* data, int64_t count) {
    TensorRef ref = Ref(data, count);
    ref.device = rank_.device();
    return ref;
  }
  TensorRef OnGpu(std::vector<float>& values) { return OnGpu(values.data(), std::ssize(values)); }

  void MakeArrays() {
    const Division held = {.end = 0, .parts = c_.shards, .part = (*shard_).rank()};
    if (c_.stage >= 2) grads_division_ = held, grads_division_.end = layout_.num_elements();
    if (c_.stage == 3) {
      slots_.emplace(rank_, memory_, layout_);
      weights_division_ = held, weights_division_.end = slots_->end();
    }
    grads_.resize(layout_.num_held(grads_division_), kNaN);
    weights_.resize(layout_.num_held(weights_division_), kNaN);
    // Each rank has only the initial weights of its slices. The first gather brings the others.
    for (const Bucket& bucket : layout_.buckets()) {
      const auto own = Own(bucket);
      for (int64_t i = own.arena_begin; i < own.arena_begin + own.count; ++i)
        weights_[layout_.PlaceOf(i, weights_division_)] = expected_.weights[0][i];
    }
    sent_.resize(layout_.buckets().size(), nullptr);
    received_.resize(layout_.buckets().size(), nullptr);
  }

  void MakeGathers(Communicator* replicas) {
    if (c_.stage < 2) {
      reducer_.emplace(layout_, *sums_, OnGpu(grads_),
                       c_.stage == 0 ? ReducedTo::kAllRanks : ReducedTo::kSlices);
    } else {
      shares_.emplace(layout_, *sums_, static_cast<ShareMemory&>(*this), /*max_in_flight=*/3);
    }
    if (c_.stage == 0) return;
    const int64_t end = weights_division_.end, all = layout_.num_elements();
    const TensorRef weights = OnGpu(weights_);
    std::vector<GatheredArray> arrays;
    if (end > 0)
      arrays.push_back(
          {.begin = 0, .end = end, .data = weights.Slice(0, end / c_.shards), .held = true});
    arrays.push_back({.begin = end,
                      .end = all,
                      .data = weights.Slice(end > 0 ? end / c_.shards : 0, all - end)});
    std::vector<std::vector<int>> layers;
    for (int unit = 0; unit < kUnits; ++unit) layers.push_back(ParamsOf(unit));
    gather_.emplace(layout_, ShardGroups(*units_group_, replicas), arrays, layers, 1);
    if (c_.stage == 3)
      units_.emplace(UnitGather::Parts{
          .memory = *slots_,
          .held =
              [this](int bucket) {
                const auto held = sums_->HeldOf(layout_, layout_.buckets()[bucket]);
                return OnGpu(weights_).Slice(held.slice_begin, held.count);
              },
          .shard = *units_group_,
          .gather = *gather_});
    gather_->Start(stream_);
  }

  // Returns the elements that this rank updates.
  ParameterLayout::SliceRange Own(const Bucket& bucket) const {
    if (c_.stage > 0) return sums_->UpdatedOf(layout_, bucket);
    return {.arena_begin = bucket.begin, .count = bucket.end - bucket.begin};
  }

  void Compute(double us, const std::function<void()>& body) {
    rank_.Compute(stream_, us, body, 64);
  }
  void Expect(bool right) { wrong_ += right ? 0 : 1; }

  const float* Weights(int param) {
    if (slots_ && UnitOf(param) >= 0) return slots_->Find(param);
    return weights_.data() + layout_.PlaceOf(layout_.offset(param), weights_division_);
  }

  void Forward(const Moment& at) {
    if (units_) {
      units_->AwaitForward(at.unit, stream_);
    } else if (gather_) {
      gather_->Await(at.unit);
    }
    for (const int param : ParamsOf(at.unit)) {
      const float* const weights = Weights(param);
      ASSERT_NE(weights, nullptr);
      Compute(20, [this, weights, param, at] {
        const int64_t begin = layout_.offset(param);
        for (int64_t i = 0; i < layout_.specs()[param].count(); ++i)
          Expect(weights[i] == expected_.weights[at.step][begin + i]);
      });
    }
  }

  // Sends a state to the next rank of the row, as a mixer does.
  void Exchange(const Moment& at) {
    Communicator& rows = *rows_;
    const int next = rows.rank() + 1 < rows.size() ? rows.rank() + 1 : -1,
              previous = rows.rank() - 1;
    float* const state = memory_.Allocate(1, SentState(at, rank_.number()));
    float* const received = memory_.Allocate(1, 0);
    states_[at.unit] = received;
    Work work =
        rows.SendRecv(OnGpu(state, next >= 0 ? 1 : 0), next, OnGpu(received, previous >= 0 ? 1 : 0),
                      previous, {"state", at.unit}, stream_);
    if (previous >= 0) {
      AwaitResult(std::move(work), stream_);
      memory_.Free(state);
    } else {
      kept_.push_back({state, std::move(work)});
    }
  }

  void Settle() {
    for (auto& [state, work] : kept_) {
      AwaitResult(std::move(work), stream_);
      memory_.Free(state);
    }
    kept_.clear();
  }

  void MicroBatch(int micro) {
    for (int unit = 0; unit < kUnits; ++unit) {
      const Moment at = {step_, micro, unit};
      Forward(at);
      Exchange(at);
    }
    const bool last = micro == kMicroBatches - 1;
    if (shares_) shares_->BeginMicroBatch(last, stream_);
    if (reducer_ && last) reducer_->BeginStep(stream_);
    for (int unit = kUnits; unit-- > 0;) Backward({step_, micro, unit}, last);
    Settle();
    if (shares_) shares_->FinishMicroBatch();
  }

  void Backward(const Moment& at, bool last) {
    // The head is still in its slot, and the backward of the embedding reads no weights.
    if (units_ && at.unit > 0 && at.unit <= kBlocks)
      units_->AwaitBackward(at.unit, /*forward_follows=*/!last, stream_);
    const float* const received = states_[at.unit];
    for (const int param : ParamsOf(at.unit)) {
      const int64_t begin = layout_.offset(param), count = layout_.specs()[param].count();
      // For the embedding, the definition is used instead of the weights.
      const float* const weights =
          units_ && at.unit == 0 ? expected_.weights[at.step].data() + begin : Weights(param);
      ASSERT_NE(weights, nullptr);
      float* const out = GradientPlace(param);
      const bool adds = c_.stage < 2;
      Compute(40, [=, this, number = rank_.number()] {
        for (int64_t i = 0; i < count; ++i) {
          const float gradient = Gradient(weights[i], *received, at, number, begin + i);
          out[i] = adds ? out[i] + gradient : gradient;
        }
      });
      if (shares_) shares_->MarkReady(param);
      if (reducer_ && last) reducer_->MarkReady(param);
    }
    memory_.Free(states_[at.unit]);
  }

  float* GradientPlace(int param) {
    if (!shares_) return grads_.data() + layout_.offset(param);
    const int index = shares_->bucket_of(param);
    const Bucket& bucket = layout_.buckets()[index];
    if (sent_[index] == nullptr) sent_[index] = memory_.Allocate(bucket.end - bucket.begin, 0);
    return sent_[index] + layout_.offset(param) - bucket.begin;
  }

  // --- ShareMemory ---
  TensorRef HeldGradients(int index) {
    const auto held = sums_->HeldOf(layout_, layout_.buckets()[index]);
    return OnGpu(grads_).Slice(held.slice_begin, held.count);
  }
  TensorRef Sent(int index) override {
    const Bucket& bucket = layout_.buckets()[index];
    return OnGpu(sent_[index], bucket.end - bucket.begin);
  }
  TensorRef Received(int index) override {
    const int64_t count = HeldGradients(index).count;
    received_[index] = memory_.Allocate(count, kNaN);
    return OnGpu(received_[index], count);
  }
  void Accept(int index) override {
    auto* const held = static_cast<float*>(HeldGradients(index).data);
    const int64_t count = HeldGradients(index).count;
    const bool first = !accepted_[{step_, index}]++;
    Compute(2, [held, count, first, sum = received_[index]] {
      for (int64_t i = 0; i < count; ++i) held[i] = first ? sum[i] : held[i] + sum[i];
    });
    memory_.Free(std::exchange(received_[index], nullptr));
    memory_.Free(std::exchange(sent_[index], nullptr));
  }
  TensorRef SentInReplicas(int index) override { return HeldGradients(index); }
  void AcceptInReplicas(int) override {}

  // The one read of a step.
  void ReadNorm() {
    double squares = 0;
    Compute(5, [&] {
      for (const Bucket& bucket : layout_.buckets()) {
        const auto own = Own(bucket);
        for (int64_t i = own.arena_begin; i < own.arena_begin + own.count; ++i) {
          const float sum = grads_[layout_.PlaceOf(i, grads_division_)];
          squares += static_cast<double>(sum) * sum;
        }
      }
    });
    rank_.Synchronize(stream_);
    rank_.control()
        .AllReduce(Ref(&squares, 1), ReduceOp::kSum, {"scalars", step_}, nullptr)
        .WaitHost();
    if (c_.stage == 0) squares /= c_.ranks;
    Expect(squares == expected_.squares[step_]);
  }

  void Update() {
    Compute(10, [this, step = step_] {
      for (const Bucket& bucket : layout_.buckets()) {
        const auto own = Own(bucket);
        for (int64_t i = own.arena_begin; i < own.arena_begin + own.count; ++i) {
          const float sum = grads_[layout_.PlaceOf(i, grads_division_)];
          float& weight = weights_[layout_.PlaceOf(i, weights_division_)];
          Expect(sum == expected_.sums[step][i]);
          weight = Updated(weight, sum);
        }
      }
    });
    if (gather_) gather_->Start(stream_);
    if (units_) units_->Invalidate();
  }

  Rank& rank_;
  const Case& c_;
  const Expected& expected_;
  const ParameterLayout layout_;
  const std::unique_ptr<Communicator> world_;
  const cudaStream_t stream_ = rank_.Stream(kComputePriority);
  StreamMemory memory_;
  JobGroup shard_, replica_, units_group_, unit_replicas_, rows_;
  std::optional<ShardGroups> sums_;
  Division grads_division_, weights_division_;
  std::vector<float> grads_, weights_;
  std::vector<float*> sent_, received_;  // by bucket
  std::map<std::pair<int, int>, int> accepted_;
  float* states_[kUnits] = {};
  std::vector<std::pair<float*, Work>> kept_;
  std::optional<Slots> slots_;
  std::optional<GradientReducer> reducer_;
  std::optional<ShareReducer> shares_;
  std::optional<ParameterGather> gather_;
  std::optional<UnitGather> units_;
  int step_ = 0;
  std::atomic<int> wrong_ = 0;
};

// Returns the number of wrong values that kernels have read.
int RunCase(const Case& c, uint64_t seed) {
  const Expected expected = Define(c, LayoutOf(c));
  std::atomic<int> wrong = 0;
  const Outcome outcome = fake::Run({.ranks = c.ranks, .seed = seed}, [&](Rank& rank) {
    Job job(rank, c, expected);
    job.Train();
    wrong += job.num_wrong();
  });
  EXPECT_EQ(outcome.error_text, "");
  EXPECT_FALSE(outcome.gave_up);
  EXPECT_EQ(outcome.double_joins, 0);
  EXPECT_EQ(outcome.unlike, 0);
  return wrong;
}

std::string ToString(const Case& c) {
  return Concat(c.ranks, " ranks, stage ", c.stage, ", shard groups of ", c.shards, ", sp ", c.sp,
                c.ordered ? ", ordered" : "");
}

// --gtest_random_seed=K runs the K-th eight seeds.
constexpr uint64_t kSeeds = 8;

TEST(FakeStep, EveryStageEqualsItsDefinition) {
  const uint64_t first = kSeeds * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed));
  for (const auto& [ranks, shards, sp] : std::vector<std::tuple<int, int, int>>{{2, 2, 1},
                                                                                {2, 2, 2},
                                                                                {2, 1, 1},
                                                                                {3, 3, 1},
                                                                                {4, 4, 2},
                                                                                {4, 2, 2},
                                                                                {8, 8, 2},
                                                                                {8, 4, 4}}) {
    for (int stage = 0; stage <= 3; ++stage) {
      Case c = {.ranks = ranks, .stage = stage, .shards = stage == 0 ? ranks : shards, .sp = sp};
      for (uint64_t seed = first; seed < first + (ranks == 8 ? kSeeds / 4 : kSeeds); ++seed) {
        c.ordered = seed % 2 == 1;
        ASSERT_EQ(RunCase(c, seed), 0) << ToString(c) << ", seed " << seed;
        if (HasFailure()) return;
      }
    }
  }
}

// A job that leaves out the stream waits of one kind of group reads wrong values for some seed.
TEST(FakeStep, SeedsFindEveryMissingStreamWait) {
  for (const Forgets kind : {Forgets::kGradients, Forgets::kParameters, Forgets::kRows}) {
    for (const int stage : {0, 1, 2, 3}) {
      if (kind == Forgets::kParameters && stage == 0) continue;  // there are no gathers
      const Case c = {.ranks = 2, .stage = stage, .shards = 2, .sp = 2, .forgets = kind};
      int wrong = 0;
      for (uint64_t seed = 0; seed < 200 && wrong == 0; ++seed) wrong = RunCase(c, seed);
      EXPECT_GT(wrong, 0) << ToString(c) << ", without the waits of kind "
                          << static_cast<int>(kind);
    }
  }
}

}  // namespace
}  // namespace halflife::dist
