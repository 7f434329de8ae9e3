#include "model/mixers/focus/focus.h"

#include <algorithm>

#include "core/error.h"

namespace halflife::model {

std::vector<Option> FocusOptions::Fields() {
  return {{"preset", &preset, {.choices = presets_}},
          {"num_heads", &num_heads},
          {"windows",
           &windows,
           {.choices = {"preset", "same", "doubling", "doubling_between", "cycle"}}},
          {"window", &window, {.min = 0}},
          {"max_length", &max_length},
          {"rescale", &rescale},
          {"dropout", &dropout}};
}

void FocusOptions::Resolve(const ModelSizes& sizes, ProblemList& problems) {
  problems.Require(sizes.model_dim % num_heads == 0, "num_heads ", num_heads,
                   " must divide model_dim ", sizes.model_dim, ". Use a divisor of it.");
  head_dim = std::max<int64_t>(1, sizes.model_dim / num_heads);
  problems.Require(window == 0 || windows == "same", "option window is ", window, " with windows ",
                   windows, ", which determines the windows. Use windows same, or window 0.");
  problems.Require(rescale >= 0 && rescale <= 1e3, "option rescale is ", rescale,
                   ". Use a factor from 0 to 1000, for example 5 or 10; 0 selects the preset's.");
  problems.Require(dropout >= 0 && dropout < 1, "option dropout is ", dropout,
                   ". Use a rate of at least 0 and below 1.");
}

std::vector<int64_t> AutomaticWindows(const std::string& rule, int64_t num_layers) {
  const bool cycle = rule == "cycle", between = rule == "doubling_between";
  HL_CHECK(cycle || between || rule == "doubling", "no rule of windows is called ", rule);
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const int64_t doublings = cycle ? (layer + 3) % 4 : between ? layer - 1 : layer;
    const bool all = cycle ? layer % 4 == 0 : layer == num_layers - 1 || (between && layer == 0);
    // 4 << 40 exceeds the length of any row and still fits in 64 bits.
    windows.push_back(all ? 0 : int64_t{4} << std::min<int64_t>(doublings, 40));
  }
  return windows;
}

int64_t WindowOf(const FocusOptions& options, const char* of_preset, const PartContext& context) {
  if (options.windows == "same") return options.window;
  const std::string rule = options.windows == "preset" ? of_preset : options.windows;
  const int64_t window = AutomaticWindows(rule, context.sizes.num_layers)[context.layer];
  return window < options.max_length ? window : 0;
}

std::vector<StateTensor> WindowPool::state(const std::string& prefix) const {
  const int64_t heads = shape_.num_heads, dim = shape_.dim, tail = shape_.window - 1;
  if (shape_.window == 0) {
    const auto scale = static_cast<int>(shape_.first_state);
    return {{.name = prefix + "log_scale", .shape = {heads}, .exchange = StateExchange::kLogScale},
            {.name = prefix + "mass", .shape = {heads}, .log_scale = scale},
            {.name = prefix + "sum", .shape = {heads, dim}, .log_scale = scale}};
  }
  if (tail == 0) return {};
  const auto last = [&](const char* name, std::vector<int64_t> shape) {
    return StateTensor{
        .name = prefix + name, .shape = std::move(shape), .exchange = StateExchange::kTail};
  };
  return {last("present", {tail}), last("log_weight", {tail, heads}),
          last("payload", {tail, heads, dim})};
}

ops::FocusPoolState WindowPool::Read(const MixerState& state) const {
  const auto tensor = [&](size_t i) { return state.tensors[shape_.first_state + i]; };
  if (shape_.window == 0) return {.log_scale = tensor(0), .mass = tensor(1), .sum = tensor(2)};
  if (shape_.window == 1) return {};
  return {.tail_present = tensor(0), .tail_log_weight = tensor(1), .tail_u = tensor(2)};
}

at::Tensor WindowPool::Forward(const at::Tensor& log_weight, const at::Tensor& u,
                               const MixerCall& call, MixerState* after) const {
  const bool carried = call.carried();
  const ops::FocusPoolOutput y =
      ops::FocusPool({.log_weight = log_weight,
                      .u = u,
                      .chunks = call.slice.chunks,
                      .initial_state = carried ? Read(*call.initial) : ops::FocusPoolState(),
                      .segment = call.slice.segment},
                     {.window = shape_.window, .eps = shape_.eps, .want_state = after != nullptr});
  if (after == nullptr || shape_.window == 1) return y.out;
  const ops::FocusPoolState& s = y.final_state;
  if (shape_.window == 0) {
    after->tensors.insert(after->tensors.end(), {s.log_scale, s.mass, s.sum});
  } else {
    after->tensors.insert(after->tensors.end(), {s.tail_present, s.tail_log_weight, s.tail_u});
  }
  return y.out;
}

at::Tensor WindowPool::Step(const at::Tensor& log_weight, const at::Tensor& u,
                            MixerState& state) const {
  ops::FocusPoolState memory = Read(state);  // FocusPoolStep updates it in place
  return ops::FocusPoolStep(log_weight, u, {.window = shape_.window, .eps = shape_.eps}, memory);
}

}  // namespace halflife::model
