"""Bugs for the CPU's and LibTorch's side of a step's elementwise and row-wise kernels, and for a
token's decoding."""

KERNELS = "src/kernels"

DROPOUT = [
    ("recompute: a mixer that reads twice is summed with the residual", "src/model/forward_pass.cc",
     "x.view_as(x)", "x", "recompute_test:Recomputed.MixersThatReadTwice*"),
    ("dropout of weights: no layer draws", "src/model/forward_pass.cc",
     "return DropoutOf(SiteWithinMixer(layer, site), rate);", "return kernels::DropoutConfig{};",
     "language_model_test"),
    ("dropout of weights: all layers draw alike", "src/model/forward_pass.cc",
     "return DropoutOf(SiteWithinMixer(layer, site), rate);",
     "return DropoutOf(SiteWithinMixer(0, site), rate);", "language_model_test"),
]

LOSS = [
    ("head: a tied weight's gradient goes by itself", "src/model/head.cc",
     "own.weight_is_own = !tied_;", "own.weight_is_own = true;", "step_test"),
    ("cross entropy: its own weight's gradient is rounded",
     "src/ops/cross_entropy/linear_cross_entropy.cc",
     "GradientSink* const sink = weight_is_own ? GradientSinkOf(weight) : nullptr;",
     "GradientSink* const sink = nullptr;", "linear_cross_entropy_test"),
    ("loss: a GPU's blocks on the CPU", f"{KERNELS}/cross_entropy/linear_cross_entropy.cc",
     "gpu ? 512u : 64u", "gpu ? 512u : 512u", "linear_cross_entropy_test"),
    ("loss: a block below the fewest rows", f"{KERNELS}/cross_entropy/linear_cross_entropy.cc",
     "std::max(kMinRows, std::bit_floor", "std::max(uint64_t{1}, std::bit_floor",
     "linear_cross_entropy_test"),
    ("loss: each block's gradient over the one before", f"{KERNELS}/cross_entropy/linear_cross_entropy.cc",
     "first == 0 ? Multiply : AddProduct", "first == 0 ? Multiply : Multiply",
     "linear_cross_entropy_test"),
    ("loss: no rows leave what the memory held", f"{KERNELS}/cross_entropy/linear_cross_entropy.cc",
     "result.dweight.zero_();", "result.dweight.fill_(3);", "linear_cross_entropy_test"),
    ("loss: a plan without the rounded gradient", f"{KERNELS}/cross_entropy/linear_cross_entropy.cc",
     "storage.gpu ? 2 * logits", "storage.gpu ? 0 * logits", "linear_cross_entropy_test"),
    ("loss: a GPU planned as the CPU", "src/train/plan/memory_plan.cc", ".gpu = RunsOnGpu(config)",
     ".gpu = false", "memory_plan_test"),
]

GATES = [
    ("decay gate, CPU: the slope of the other sign", f"{KERNELS}/decay_gate/cpu.cc",
     "scale * Sigmoid(-z)", "scale * Sigmoid(z)", "decay_gate_test"),
    ("decay gate, CPU: a gradient at the floor", f"{KERNELS}/decay_gate/cpu.cc",
     "LogDecay(z, scale) < floor ? 0.0f : slope", "slope", "decay_gate_test"),
    ("decay gate, CPU: ln(1 + e) of what has overflowed", f"{KERNELS}/decay_gate/cpu.cc",
     "Exp(x < 0.0f ? x : -x)", "Exp(-x)", "decay_gate_test"),
    ("decay gate, CPU: each block of rows one short", f"{KERNELS}/decay_gate/decay_gate.cc",
     "std::min(rows.num_rows, (block + 1) * kRows)", "std::min(rows.num_rows, (block + 1) * kRows) - 1",
     "decay_gate_test"),
]

BIASES = [
    ("biased map, CPU: elu without its 1", f"{KERNELS}/bias_map/cpu.cc",
     "return Exp(x < 0.0f ? x : 0.0f) +", "return Exp(x < 0.0f ? x : 0.0f) - 1.0f +", "bias_map_test"),
    ("biased map, CPU: a NaN is a feature of 1", f"{KERNELS}/bias_map/cpu.cc",
     "(x <= 0.0f ? 0.0f : x)", "(x > 0.0f ? x : 0.0f)", "bias_map_test"),
    ("biased map, CPU: the slope of elu is its feature", f"{KERNELS}/bias_map/cpu.cc",
     "d *= feature > 1.0f ? 1.0f : feature;", "d *= feature;", "bias_map_test"),
    ("biased map, CPU: columns read as if contiguous", f"{KERNELS}/bias_map/cpu.cc",
     "const T* const x = part.x + row * part.stride;\n    T* const out = part.out + row * part.width;\n"
     "    if (part.bias == nullptr) {\n      ForwardRow",
     "const T* const x = part.x + row * part.width;\n    T* const out = part.out + row * part.width;\n"
     "    if (part.bias == nullptr) {\n      ForwardRow", "bias_map_test"),
    ("biased map: each block of rows one short", f"{KERNELS}/bias_map/bias_map.cc",
     "std::min(args.num_rows, (block + 1) * kRows),", "std::min(args.num_rows, (block + 1) * kRows) - 1,",
     "bias_map_test"),
    ("biased map: gradients of columns apart", f"{KERNELS}/bias_map/bias_map.cc",
     ".joined = AreColumns(parts)}",
     ".joined = AreColumns(parts) && parts.size() > 9}", "bias_map_test"),
    ("biased map: what the sink holds is lost", f"{KERNELS}/bias_map/bias_map.cc",
     "part.added = places.bias->added();", "part.added = false;", "bias_map_test"),
    ("biased map: what the gain's sink holds is lost", f"{KERNELS}/bias_map/bias_map.cc",
     "part.gain_added = places.gain->added();", "part.gain_added = false;", "bias_map_test"),
    ("biased map, CPU: the slope of SiLU is its sigmoid", f"{KERNELS}/bias_map/cpu.cc",
     "(s * (1.0f + y * (1.0f - s)))", "s", "bias_map_test"),
    ("biased map, CPU: SiLU's slope without the bias", f"{KERNELS}/bias_map/cpu.cc",
     "if constexpr (kBias) y += Widen(bias[i]);\n    const float s", "const float s", "bias_map_test"),
    ("biased map, CPU: the gradient is not scaled by the gain", f"{KERNELS}/bias_map/cpu.cc",
     "dx[i] = Narrow<T>(d * gain[i]);", "dx[i] = Narrow<T>(d);", "bias_map_test"),
    ("biased map, fp64: the slope of elu is its feature", f"{KERNELS}/bias_map/bias_map.cc",
     "call.saved[0].clamp_max(1)", "call.saved[0]", "bias_map_test"),
]

ROTARY = [
    ("rotary, CPU: keys by the gaps of queries", f"{KERNELS}/rotary/cpu.cc", "token * heads.x_stride",
     "token * tokens.heads[0].x_stride", "rotary_test"),
    ("rotary: rows apart taken for tokens at one stride", f"{KERNELS}/torch/side_by_side.cc",
     "    if (x.stride(i) != *stride * rows) return std::nullopt;\n", "", "rotary_test"),
    ("rotary: the pair's heads swapped", f"{KERNELS}/rotary/rotary.cc",
     "return {.q = rotated[0], .k = rotated[1]};", "return {.q = rotated[1], .k = rotated[0]};",
     "rotary_test"),
]

LINEAR = f"{KERNELS}/linear"
PRODUCTS = [
    ("joined: outputs in the order of memory", f"{LINEAR}/linear.cc",
     "outs[runs[i].numbers[j]] = parts[j]", "outs[runs[i].numbers[0] + j < outs.size() ? "
     "runs[i].numbers[0] + j : j] = parts[j]", "linear_test"),
    ("joined: a run of which one output has no gradient", f"{LINEAR}/linear.cc",
     "return call.grads[i].defined() && call.wanted", "return call.wanted", "linear_test"),
    ("joined: sums begun anew that should be added to", f"{LINEAR}/weight_product.cc",
     "added ? sum.addmm_(dy.t(), x) : at::mm_out(sum, dy.t(), x);", "at::mm_out(sum, dy.t(), x);",
     "linear_test"),
    ("joined: places that differ in whether they are added to", f"{LINEAR}/weight_sums.cc",
     "if (place.added != places_[0].added) return false;\n", "", "linear_test"),
    ("joined: a gap taken for the next rows", f"{KERNELS}/torch/side_by_side.cc",
     "Follows(above, below, above.numel())", "true", "side_by_side_test"),
    ("joined: more columns than lie from row to row", f"{KERNELS}/torch/side_by_side.cc",
     "if (!one || columns > first.stride(0))", "if (!one)", "side_by_side_test"),
    ("sink: autograd's gradient besides the kernel's own", f"{KERNELS}/torch/gradient_sink.cc",
     "if (!grad.defined()) return;", "if (!grad.defined()) grad = at::empty(leaf.sizes());",
     "gradient_sink_test"),
    ("swiglu: gradients of halves in the other order", f"{KERNELS}/torch/side_by_side.cc",
     "if (Follows(x, y, width)) return {first, second};", "return {first, second};",
     "elementwise_test"),
    ("norm: a gate's tokens one head apart", f"{KERNELS}/rms_norm/rms_norm.cc",
     "NormGatePlace{.gate_rows = gate.size(-2)", "NormGatePlace{.gate_rows = 1", "rms_norm_test"),
]

DECODING = [
    ("decoder: places stand still", "src/infer/decoder.cc", "positions_.add_(1);", "",
     "decoder_test"),
    ("decoder: a step begins where the prompt did", "src/infer/decoder.cc",
     "positions_ = at::full({tokens.size(0), 1}, state_.num_tokens,",
     "positions_ = at::full({tokens.size(0), 1}, int64_t{0},", "decoder_test"),
    ("decoder: a later token is the first one", "src/infer/decoder.cc", "tokens_.copy_(tokens);",
     "", "decoder_test"),
]

MUTATIONS = DROPOUT + LOSS + DECODING + GATES + BIASES + ROTARY + PRODUCTS
