#include "model/forward_pass.h"

#include <functional>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "ops/rows/dropout.h"
#include "ops/sequence/segment_tape.h"
#include "ops/torch/autograd.h"

namespace halflife::model {
namespace {

using ops::Tensors;

// The number of a dropout's place in the model, which is part of its random key.
constexpr uint32_t kEmbeddingSite = 0;
uint32_t SiteOf(size_t layer, LayerPass::Branch branch) {
  return static_cast<uint32_t>(1 + 2 * layer + branch);
}
uint32_t SiteWithinMixer(size_t layer, uint32_t site) {
  return uint32_t{1} << 31 | static_cast<uint32_t>(layer) << 8 | site;
}

// Runs `run` so that backward recomputes it. If the rows are split over ranks, the ranks
// communicate only in the first run; the second run reads the results from a tape.
Tensors RecomputedOverSlice(
    const char* name, const Tensors& inputs, const SequenceSlice& slice,
    std::function<Tensors(const Tensors& inputs, const SequenceSlice& slice)> run) {
  if (slice.segment == nullptr)
    return ops::Recomputed(name, inputs, [run = std::move(run), &slice](const Tensors& again) {
      return run(again, slice);
    });
  const auto tape = std::make_shared<ops::SegmentTape>(slice.segment->group);
  auto segment = std::make_shared<ops::RowSegment>(*slice.segment);
  segment->group = tape;
  const auto taped = std::make_shared<SequenceSlice>(slice);
  taped->segment = std::move(segment);
  return ops::Recomputed(name, inputs, [run = std::move(run), tape, taped](const Tensors& in) {
    Tensors outputs;
    tape->Run([&] { outputs = run(in, *taped); });
    return outputs;
  });
}

// Appends `x` if it is defined and not `before`.
void AppendIfNew(const at::Tensor& x, const at::Tensor& before, Tensors& list) {
  if (x.defined() && !x.is_same(before)) list.push_back(x);
}

}  // namespace

at::Tensor ForwardPass::DropFromEmbedding(const at::Tensor& x) const {
  const double own = config_.embedding.dropout;
  return Drop(kEmbeddingSite, x, own > 0 ? own : config_.dropout);
}

ops::DropoutConfig ForwardPass::DropoutOf(uint32_t site, double rate) const {
  return {.rate = rate,
          .key = MakeRandomKey(context_.seed, RandomPurpose::kDropout, site),
          .samples = context_.samples,
          .first_position = context_.slice->begin};
}

at::Tensor ForwardPass::Drop(uint32_t site, const at::Tensor& x, double rate) const {
  if (!drops() || rate == 0) return x;
  return ops::Dropout(x, DropoutOf(site, rate));
}

void ForwardPass::Run(size_t layer, const Block& block, ResidualStream& stream) const {
  if (!recomputes(Recompute::kBlock)) return RunOnce(layer, block, stream, *context_.slice);
  const auto run = [pass = shared_from_this(), layer, &block](const Tensors& parts,
                                                              const SequenceSlice& slice) {
    ResidualStream within(parts[0], parts[1]);
    if (parts.size() > 2) within.first_values = parts[2];
    const at::Tensor before = within.first_values;
    pass->RunOnce(layer, block, within, slice);
    Tensors results = {within.x(), within.branch()};
    AppendIfNew(within.first_values, before, results);
    return results;
  };
  Tensors parts = {stream.x(), stream.branch()};
  AppendIfNew(stream.first_values, {}, parts);
  const Tensors after = RecomputedOverSlice("Block", parts, *context_.slice, run);
  const at::Tensor values = after.size() > 2 ? after[2] : stream.first_values;
  stream = ResidualStream(after[0], after[1]);
  stream.first_values = values;
}

void ForwardPass::AwaitInBackward(size_t layer, ResidualStream& stream) const {
  const Tensors parts = {stream.x(), stream.branch()};
  const auto backward = [await = context_.await_backward, layer](ops::BackwardCall call) {
    await(static_cast<int64_t>(layer));
    return std::move(call.grads);
  };
  const Tensors after =
      ops::Apply({.name = "AwaitLayer", .inputs = parts, .undefined_grads = true, .forward = [&] {
                    return ops::Forwarded{.outputs = parts, .saved = {}, .backward = backward};
                  }});
  const at::Tensor values = stream.first_values;
  stream = ResidualStream(after[0], after[1]);
  stream.first_values = values;
}

void ForwardPass::RunOnce(size_t layer, const Block& block, ResidualStream& stream,
                          const SequenceSlice& slice) const {
  const auto mix = [&](const Mixer& mixer, const at::Tensor& x) {
    // view_as gives the mixer its own autograd node. If the mixer reads x several times, these
    // gradients are summed first, and then added to the gradients of other readers of x.
    // Recomputing the mixer sums them in the same order.
    if (!recomputes(Recompute::kMixer))
      return Mix(layer, mixer, x.view_as(x), slice, stream.first_values);
    const auto run = [pass = shared_from_this(), layer, &mixer](const Tensors& inputs,
                                                                const SequenceSlice& of_run) {
      const at::Tensor before = inputs.size() > 1 ? inputs[1] : at::Tensor();
      at::Tensor values = before;
      Tensors outputs = {pass->Mix(layer, mixer, inputs[0], of_run, values)};
      AppendIfNew(values, before, outputs);
      return outputs;
    };
    Tensors inputs = {x};
    AppendIfNew(stream.first_values, {}, inputs);
    const Tensors outputs = RecomputedOverSlice("Mixer", inputs, slice, run);
    if (outputs.size() > 1) stream.first_values = outputs[1];
    return outputs[0];
  };
  block.Forward(stream, {.mix = mix, .drop = [&](LayerPass::Branch branch, const at::Tensor& y) {
                           return Drop(SiteOf(layer, branch), y, config_.dropout);
                         }});
}

at::Tensor ForwardPass::Mix(size_t layer, const Mixer& mixer, const at::Tensor& x,
                            const SequenceSlice& slice, at::Tensor& first_values) const {
  MixerCall call = {.x = x, .slice = slice, .first_values = first_values};
  const MixerOutput output = Call(layer, mixer, call);
  if (output.first_values.defined()) first_values = output.first_values;
  return output.y;
}

MixerOutput ForwardPass::Call(size_t layer, const Mixer& mixer, MixerCall& call) const {
  if (drops()) {
    call.drop = [this, layer](uint32_t site, const at::Tensor& y, double rate) {
      return Drop(SiteWithinMixer(layer, site), y, rate);
    };
    call.drop_within = [this, layer](uint32_t site, double rate) {
      return DropoutOf(SiteWithinMixer(layer, site), rate);
    };
  }
  if (context_.observe)
    call.observe = [this, layer](const auto& inputs, const auto& config) {
      context_.observe(static_cast<int64_t>(layer), inputs, config);
    };
  if (context_.before_mixer) context_.before_mixer(static_cast<int64_t>(layer), mixer, call);
  if (call.slice.segment != nullptr) return OverSegments(layer, mixer, call);
  if (state_ == nullptr) return mixer.Forward(call);
  call.initial = &state_->layers[layer];
  call.num_past = state_->num_tokens;
  call.want_state = true;
  MixerOutput output = mixer.Forward(call);
  state_->layers[layer] = std::move(output.state);
  return output;
}

MixerOutput ForwardPass::OverSegments(size_t layer, const Mixer& mixer,
                                      const MixerCall& call) const {
  const ops::SegmentGroup& group = *call.slice.segment->group;
  const int64_t before = group.num_reads();
  MixerOutput output = mixer.Forward(call);
  // A mixer that remembers earlier tokens but never requested those of other ranks would train on
  // separate slices.
  const MixerTraits traits = mixer.traits();
  HL_CHECK_AS(ExitCode::kUsage,
              traits.splits_rows && (traits.state.empty() || group.num_reads() > before),
              config_.NameOfMixer(static_cast<int64_t>(layer)),
              " cannot split a row over several ranks. Use parallel.sp=1.");
  return output;
}

}  // namespace halflife::model
