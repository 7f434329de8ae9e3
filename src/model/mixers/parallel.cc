// The sum of several mixers of one input, such as Mamba-2 and softmax attention in Falcon-H1
// (Zuo et al., 2025):
//
//   y = sum_i output_multiplier_i mixer_i(input_multiplier_i x)
//
// The parameters of part i are named as those of the mixer, after "i.". The state is the states of
// all parts, in order.
#include "model/mixers/parallel.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/mixers/variants.h"

namespace halflife::model {
namespace {

constexpr uint32_t kNumDropoutSites = 256;  // The sites of a mixer (MixerCall::Drop).

struct ParallelOptions : OptionsOf<ParallelOptions> {
  std::vector<ParallelPart> parts = {ParallelPart(MixerConfig("mamba2")),
                                     ParallelPart(MixerConfig("softmax"))};

  std::vector<OptionList> Lists() override { return {ListOf("parts", &parts)}; }

  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    problems.Require(!parts.empty(),
                     "there are no parts. Add one, for example parts { mixer { softmax {} } }.");
    for (size_t i = 0; i < parts.size(); ++i) {
      ParallelPart& part = parts[i];
      for (const std::string& problem : part.mixer.Resolve(sizes))
        problems.Require(false, "part ", i, ": ", problem);
      for (const Option& option : part.Fields())
        problems.Require(std::isfinite(std::get<double>(option.value())), "part ", i, ": option ",
                         option.name, " is ", Text(option.value()),
                         ". Use a finite number (1 is usual).");
    }
  }
};

at::Tensor Scaled(const at::Tensor& x, double factor) { return factor == 1 ? x : x * factor; }

class Parallel : public Mixer {
 public:
  Parallel(const ParallelOptions& options, const PartContext& context) : dim_(context.model_dim()) {
    size_t first_state = 0;
    for (size_t i = 0; i < options.parts.size(); ++i) {
      const ParallelPart& given = options.parts[i];
      Part part = {.mixer = MakeMixer(given.mixer, context.Below(Concat(i, "."))),
                   .name = given.mixer.name(),
                   .input_multiplier = given.input_multiplier,
                   .output_multiplier = given.output_multiplier,
                   .first_state = first_state};
      part.num_states = part.mixer->traits().state.size();
      first_state += part.num_states;
      parts_.push_back(std::move(part));
    }
  }

  MixerTraits traits() const override {
    MixerTraits all;
    bool ignores_position_ids = false;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const MixerTraits own = parts_[i].mixer->traits();
      all.causal &= own.causal;
      all.causal_in_bits &= own.causal_in_bits;
      all.packs_documents &= own.packs_documents;
      all.replays_documents &= own.replays_documents;
      all.splits_rows &= own.splits_rows;
      if (own.max_tokens > 0)
        all.max_tokens = std::min(own.max_tokens, all.max_tokens > 0 ? all.max_tokens : INT64_MAX);
      all.takes_positions |= own.takes_positions;
      all.reads_position_ids |= own.reads_position_ids;
      ignores_position_ids |= own.takes_positions && !own.reads_position_ids;
      all.has_attention_probabilities |= own.has_attention_probabilities;
      all.asks_row_length |= own.asks_row_length;
      all.reads_values |= own.reads_values;
      all.publishes_values |= own.publishes_values;
      AddState(i, own, all);
    }
    all.reads_position_ids &= !ignores_position_ids;
    return all;
  }

  MixerOutput Forward(const MixerCall& call) const override {
    MixerOutput sum;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      MixerCall own = CallOf(i, call);
      MixerState before;
      if (call.carried()) {
        before = StateOf(part, *call.initial);
        own.initial = &before;
      }
      MixerOutput out = ForwardOf(part, own);
      Add(part, out.y, sum.y);
      std::ranges::move(out.state.tensors, std::back_inserter(sum.state.tensors));
      if (out.first_values.defined()) sum.first_values = out.first_values;
    }
    return sum;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                  MixerState& state) const override {
    at::Tensor none;
    return StepWithValues(x, token, state, none);
  }
  at::Tensor StepWithValues(const at::Tensor& x, const SequenceSlice& token, MixerState& state,
                            at::Tensor& first_values) const override {
    at::Tensor sum;
    const at::Tensor given = first_values;
    for (const Part& part : parts_) {
      MixerState own = StateOf(part, state);
      at::Tensor values = given;
      Add(part, part.mixer->StepWithValues(Scaled(x, part.input_multiplier), token, own, values),
          sum);
      if (!values.is_same(given)) first_values = values;
      // A tensor that grows may have been replaced.
      std::ranges::move(own.tensors, state.tensors.begin() + Offset(part));
    }
    return sum;
  }

  FlopCount FlopsPerToken(int64_t seq_len) const override {
    FlopCount sum;
    for (const Part& part : parts_) sum += part.mixer->FlopsPerToken(seq_len);
    return sum;
  }
  double ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override {
    double sum = 0;
    int64_t num_readers = 0;  // Parts that keep x itself, which is stored only once.
    for (const Part& part : parts_) {
      sum += part.mixer->ActivationBytesPerToken(seq_len, bytes_per_element);
      num_readers += part.input_multiplier == 1 ? 1 : 0;
    }
    const int64_t copies = std::max<int64_t>(num_readers - 1, 0);
    return sum - static_cast<double>(copies * dim_ * bytes_per_element);
  }
  double GpuActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override {
    double sum = 0;
    for (const Part& part : parts_)
      sum += part.mixer->GpuActivationBytesPerToken(seq_len, bytes_per_element);
    return sum;
  }
  double WorkspaceBytes(const GpuBatch& batch) const override {
    double most = 0;
    for (const Part& part : parts_) most = std::max(most, part.mixer->WorkspaceBytes(batch));
    return most;
  }

 private:
  struct Part {
    std::unique_ptr<Mixer> mixer;
    std::string name;
    double input_multiplier = 1, output_multiplier = 1;
    size_t first_state = 0, num_states = 0;  // Its tensors in the state.
  };

  static std::ptrdiff_t Offset(const Part& part) {
    return static_cast<std::ptrdiff_t>(part.first_state);
  }

  // Appends the state of a part under names such as "0.ssm".
  void AddState(size_t i, const MixerTraits& own, MixerTraits& all) const {
    for (StateTensor tensor : own.state) {
      tensor.name = Concat(i, ".", tensor.name);
      if (tensor.log_scale >= 0) tensor.log_scale += static_cast<int>(parts_[i].first_state);
      all.state.push_back(std::move(tensor));
    }
  }

  static MixerState StateOf(const Part& part, const MixerState& state) {
    const auto begin = state.tensors.begin() + Offset(part);
    return {.tensors = {begin, begin + static_cast<std::ptrdiff_t>(part.num_states)}};
  }

  // Returns the call of part i: its own input and its own dropout sites.
  MixerCall CallOf(size_t i, const MixerCall& call) const {
    MixerCall own = call;
    own.x = Scaled(call.x, parts_[i].input_multiplier);
    const auto site_of = [i, count = parts_.size()](uint32_t site) {
      const auto own_site = static_cast<uint32_t>(site * count + i);
      HL_CHECK(own_site < kNumDropoutSites, "mixer parallel has too many parts with dropout");
      return own_site;
    };
    if (call.drop)
      own.drop = [drop = call.drop, site_of](uint32_t site, const at::Tensor& x, double rate) {
        return drop(site_of(site), x, rate);
      };
    if (call.drop_within)
      own.drop_within = [drop = call.drop_within, site_of](uint32_t site, double rate) {
        return drop(site_of(site), rate);
      };
    return own;
  }

  static MixerOutput ForwardOf(const Part& part, const MixerCall& call) {
    if (call.slice.segment == nullptr) return part.mixer->Forward(call);
    // A model checks the same for whole mixers, where one part could hide another.
    const ops::SegmentGroup& group = *call.slice.segment->group;
    const int64_t before = group.num_reads();
    MixerOutput out = part.mixer->Forward(call);
    HL_CHECK_AS(ExitCode::kUsage, part.num_states == 0 || group.num_reads() > before,
                "mixer parallel: its part ", part.name,
                " cannot split a row over several ranks. Use parallel.sp=1.");
    return out;
  }

  static void Add(const Part& part, const at::Tensor& y, at::Tensor& sum) {
    const double factor = part.output_multiplier;
    sum = sum.defined() ? sum.add(y, factor) : Scaled(y, factor);
  }

  int64_t dim_;
  std::vector<Part> parts_;
};

}  // namespace

MixerConfig ParallelMixer(std::vector<ParallelPart> parts) {
  MixerConfig config("parallel");
  static_cast<ParallelOptions&>(config.options()).parts = std::move(parts);
  return config;
}

const std::vector<ParallelPart>& PartsOfParallel(const MixerConfig& parallel) {
  HL_CHECK(parallel.name() == "parallel", "the mixer is ", parallel.name(), ", not parallel");
  return static_cast<const ParallelOptions&>(parallel.options()).parts;
}

MixerVariant ParallelVariant() { return MixerVariantOf<ParallelOptions, Parallel>("parallel"); }

}  // namespace halflife::model
