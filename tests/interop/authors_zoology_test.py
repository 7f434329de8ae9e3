#!/usr/bin/env python3
"""Tests halflife import --layout zoology. The scores of small models of associative recall with their
authors' tensor names must equal a forward in fp64.

    .venv-compare/bin/python tests/interop/authors_zoology_test.py build/cpu/tests/engine_server
"""

import math

import engine
from authors_fixture import (DIM, POSITIONS, VOCAB, AuthorsTest, layer_norm, linear,
                             next_token_log_probs, random_weights)
import torch
import torch.nn.functional as F

FEATURES, FILTER_WIDTH, STATES, RANK = 4, 16, 5, 2
# Heads of 5 values each: 30 for the model's 32 channels.
POLYNOMIAL = {"num_heads": 6, "num_key_value_heads": 6, "feature_dim": FEATURES, "l_max": POSITIONS}
KWARGS = {
    "MHA": {"num_heads": 2, "dropout": 0.1},
    "BaseConv": {"l_max": POSITIONS, "kernel_size": 3},
    "Based": POLYNOMIAL | {"feature_name": "taylor_exp"},
    "ReBased": POLYNOMIAL | {"use_gamma": True, "use_beta": True, "normalize": True},
    "Hyena": {"l_max": POSITIONS, "filter_order": FILTER_WIDTH},
    "RWKVTimeMixer": {"l_max": POSITIONS, "n_layer": 2},
    "Mamba": {"d_state": STATES},
}
FILES = {"MHA": "attention", "BaseConv": "base_conv", "RWKVTimeMixer": "rwkv"}


def module(name, **more):
    return {"name": f"src.mixers.{FILES.get(name, name.lower())}.{name}", "kwargs": KWARGS[name] | more}


def hybrid(*modules):
    return {"name": "zoology.mixers.hybrid.Hybrid", "kwargs": {"configs": list(modules)}}


IDENTITY = {"name": "torch.nn.Identity", "kwargs": {}}
MLP = {"name": "zoology.mixers.mlp.MLP", "kwargs": {"hidden_mult": 4}}


def config_of(sequence_mixer, layers=2, state_mixer=None, **more):
    return {"sequence_mixer": sequence_mixer, "state_mixer": state_mixer or IDENTITY, "d_model": DIM,
            "n_layers": layers, "max_position_embeddings": POSITIONS, "vocab_size": VOCAB,
            "resid_dropout": 0.0, "embed_dropout": 0.1, "drop_path": 0.0, "layer_norm_epsilon": 1e-5,
            "pad_vocab_size_multiple": 1, "learnable_word_embeddings": True,
            "block_type": "TransformerBlock"} | more


def class_of(described):
    return described["name"].split(".")[-1]


def in_layer(config, layer):
    """Returns the mixer of a layer, and the prefix of its names."""
    described = config["sequence_mixer"]
    prefix = f"backbone.layers.{layer}.sequence_mixer."
    if class_of(described) != "Hybrid":
        return described, prefix
    configs = described["kwargs"]["configs"]
    return configs[layer % len(configs)], prefix + "mixer."


# ---- Shapes


def affine(name, out, width, bias=True):
    return {name + ".weight": [out, width]} | ({name + ".bias": [out]} if bias else {})


def polynomial_shapes(kwargs):
    keys, values = kwargs["num_heads"] * FEATURES, DIM // kwargs["num_heads"] * kwargs["num_heads"]
    return (affine("proj_q", keys, DIM, False) | affine("proj_k", keys, DIM, False) |
            affine("proj_v", values, DIM, False) | affine("proj_o", DIM, values, False))


def rebased_shapes(kwargs):
    keys = kwargs["num_heads"] * FEATURES
    names = ("weight", "bias") if kwargs["normalize"] else ("gamma", "beta")
    if not kwargs["use_gamma"]:
        names = ()
    return polynomial_shapes(kwargs) | {f"ln_{x}.{name}": [keys] for x in "qk" for name in names}


def base_conv_shapes(kwargs, layer):
    taps = kwargs["kernel_size"]
    taps = taps[layer] if isinstance(taps, list) else taps
    shapes = affine("projection", DIM, DIM)
    if taps > 0:
        return shapes | {"conv.conv.weight": [DIM, 1, taps], "conv.conv.bias": [DIM]}
    return (shapes | affine("conv.mlp.0", 16, 3) | affine("conv.mlp.2", DIM, 16) |
            {"conv.pos_emb.z": [1, POSITIONS, 3]})


def hyena_shapes():
    net = "filter_fn.implicit_filter."
    return (affine("in_proj", 3 * DIM, DIM) | affine("out_proj", DIM, DIM) |
            {"short_filter.weight": [3 * DIM, 1, 3], "short_filter.bias": [3 * DIM],
             "filter_fn.bias": [DIM], "filter_fn.pos_emb.z": [1, POSITIONS, 3],
             "filter_fn.pos_emb.t": [1, POSITIONS, 1], "filter_fn.modulation.deltas": [1, 1, DIM],
             net + "1.freq": [1, FILTER_WIDTH]} |
            affine(net + "0", FILTER_WIDTH, 3) | affine(net + "2", FILTER_WIDTH, FILTER_WIDTH) |
            affine(net + "4", FILTER_WIDTH, FILTER_WIDTH) | affine(net + "6", DIM, FILTER_WIDTH, False))


def rwkv_shapes():
    shapes = {"time_decay": [DIM], "time_first": [DIM]}
    for name in "kvr":
        shapes["time_mix_" + name] = [1, 1, DIM]
    for name in ("key", "value", "receptance", "output"):
        shapes |= affine(name, DIM, DIM, False)
    return shapes


def mamba_shapes():
    inner = 2 * DIM
    return (affine("in_proj", 2 * inner, DIM, False) | affine("x_proj", RANK + 2 * STATES, inner, False) |
            affine("dt_proj", inner, RANK) | affine("out_proj", DIM, inner, False) |
            {"conv1d.weight": [inner, 1, 4], "conv1d.bias": [inner], "A_log": [inner, STATES], "D": [inner]})


def mixer_shapes(described, layer):
    kwargs = described["kwargs"]
    return {
        "MHA": lambda: affine("Wqkv", 3 * DIM, DIM, kwargs.get("bias", True)) | affine("out_proj", DIM, DIM),
        "BaseConv": lambda: base_conv_shapes(kwargs, layer),
        "Based": lambda: polynomial_shapes(kwargs),
        "ReBased": lambda: rebased_shapes(kwargs),
        "Hyena": hyena_shapes,
        "RWKVTimeMixer": rwkv_shapes,
        "Mamba": mamba_shapes,
    }[class_of(described)]()


def shapes_of(config):
    shapes = {"backbone.embeddings.word_embeddings.weight": [config["vocab_size"], DIM],
              "backbone.ln_f.weight": [DIM], "backbone.ln_f.bias": [DIM]}
    if config["max_position_embeddings"] > 0:
        shapes["backbone.embeddings.position_embeddings.weight"] = [POSITIONS, DIM]
    for layer in range(config["n_layers"]):
        block = f"backbone.layers.{layer}."
        if config["block_type"] == "MambaBlock":
            shapes[block + "norm.weight"] = [DIM]
            shapes |= {f"{block}mixer.{name}": shape for name, shape in mamba_shapes().items()}
            continue
        for norm in ("norm1", "norm2"):
            shapes |= {f"{block}{norm}.weight": [DIM], f"{block}{norm}.bias": [DIM]}
        described, prefix = in_layer(config, layer)
        shapes |= {prefix + name: shape for name, shape in mixer_shapes(described, layer).items()}
        if config["state_mixer"] == MLP:
            shapes |= affine(block + "state_mixer.fc1", 4 * DIM, DIM)
            shapes |= affine(block + "state_mixer.fc2", DIM, 4 * DIM)
    return shapes


def position_features():
    """Returns the position features of a filter: the time, and the cosine and sine of a slow wave."""
    place = torch.arange(POSITIONS, dtype=torch.float64)
    wave = 1e-4 * 2 * math.pi * place / POSITIONS
    return torch.stack([place / (POSITIONS - 1), wave.cos(), -wave.sin()], -1)


def weights_of(config):
    weights = random_weights(shapes_of(config))
    for name in list(weights):
        features = position_features().float()[None]
        if name.endswith("filter_fn.pos_emb.z"):
            weights[name] += features  # this table is trained
        elif name.endswith("conv.pos_emb.z"):
            weights[name] = features
        elif name.endswith("pos_emb.t"):
            weights[name] = features[..., :1].contiguous()
        elif name.endswith("modulation.deltas"):
            weights[name] = torch.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, DIM)[None, None]
        elif name.endswith(".1.freq"):
            weights[name] += 1
            for number in "35":  # one module is used three times, so a state_dict has three copies
                weights[name.replace(".1.freq", f".{number}.freq")] = weights[name].clone()
    return weights


# ---- Forwards: x [T, D] -> [T, D]


def short_conv(x, weight, bias):
    taps = weight.shape[-1]
    padded = F.pad(x.t()[None], (taps - 1, 0))
    return F.conv1d(padded, weight, bias, groups=weight.shape[0])[0].t()


def long_conv(x, filters):
    """Returns the causal convolution of x with filters [T, D]."""
    steps = x.shape[0]
    place = torch.arange(steps)
    distance = place[:, None] - place
    toeplitz = filters[distance.clamp_min(0)] * (distance >= 0)[..., None]
    return torch.einsum("ijd,jd->id", toeplitz, x)


def attention(w, x, kwargs):
    heads = kwargs.get("num_heads", 1)
    q, k, v = (y.unflatten(-1, (heads, -1)) for y in linear(x, w, "Wqkv").chunk(3, -1))
    scores = torch.einsum("ihc,jhc->hij", q, k) / math.sqrt(DIM // heads)
    later = torch.ones(scores.shape[1:]).triu(1).bool()
    weights = scores.masked_fill(later, -math.inf).softmax(-1)
    return linear(torch.einsum("hij,jhc->ihc", weights, v).flatten(1), w, "out_proj")


def polynomial(w, x, kwargs, kappa, prepare=lambda y, which: y):
    heads = kwargs["num_heads"]
    q, k = (prepare(linear(x, w, "proj_" + which), which).unflatten(-1, (heads, -1)) for which in "qk")
    v = linear(x, w, "proj_v").unflatten(-1, (heads, -1))
    weights = kappa(torch.einsum("ihc,jhc->hij", q, k) / math.sqrt(FEATURES)).tril()
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-12)
    return linear(torch.einsum("hij,jhc->ihc", weights, v).flatten(1), w, "proj_o")


def based(w, x, kwargs):
    return polynomial(w, x, kwargs, lambda s: 1 + s + s * s / 2)


def rebased(w, x, kwargs):
    def prepare(y, which):
        if kwargs["normalize"]:
            return layer_norm(y, w, "ln_" + which)
        if not kwargs["use_gamma"]:
            return y
        moved = y * w[f"ln_{which}.gamma"]
        return moved + w[f"ln_{which}.beta"] if kwargs["use_beta"] else moved
    return polynomial(w, x, kwargs, lambda s: s * s, prepare)


def base_conv(w, x, kwargs):
    if "conv.conv.weight" in w:
        conv = short_conv(x, w["conv.conv.weight"], w["conv.conv.bias"])
    else:
        inner = F.relu(linear(position_features()[:x.shape[0]], w, "conv.mlp.0"))
        conv = long_conv(x, linear(inner, w, "conv.mlp.2")) + x
    act = F.silu if kwargs.get("use_act") else lambda y: y
    return act(conv) * act(linear(x, w, "projection")) + x


def hyena(w, x, _):
    steps, net = x.shape[0], "filter_fn.implicit_filter."
    h = w["filter_fn.pos_emb.z"][0, :steps]
    for i in (0, 2, 4):
        h = torch.sin(w[net + "1.freq"][0] * linear(h, w, f"{net}{i}"))
    h = linear(h, w, net + "6")
    time = torch.arange(steps, dtype=x.dtype)[:, None] / (POSITIONS - 1)
    slow, fast = -math.log(0.01) / 1.5, -math.log(0.01) / 0.3
    h = h * torch.exp(-time * torch.linspace(slow, fast, DIM, dtype=x.dtype))
    x1, x2, v = short_conv(linear(x, w, "in_proj"), w["short_filter.weight"],
                           w["short_filter.bias"]).chunk(3, -1)
    u = x1 * v
    return linear(x2 * (long_conv(u, h) + w["filter_fn.bias"] * u), w, "out_proj")


def rwkv(w, x, _):
    before = F.pad(x, (0, 0, 1, 0))[:-1]
    def mixed(name):
        share = w["time_mix_" + name].flatten()
        return share * x + (1 - share) * before
    k, v, r = (linear(mixed(name[0]), w, name) for name in ("key", "value", "receptance"))
    place = torch.arange(x.shape[0], dtype=x.dtype)
    distance = (place[:, None] - place)[..., None]
    # A token's own key has a bonus. Earlier keys decay with the distance to the previous token.
    logit = torch.where(distance == 0, w["time_first"], -(distance - 1) * w["time_decay"].exp()) + k[None]
    weights = logit.masked_fill(distance < 0, -math.inf).softmax(1)
    return linear(torch.sigmoid(r) * torch.einsum("ijd,jd->id", weights, v), w, "output")


def mamba(w, x, _):
    inner, gate = linear(x, w, "in_proj").chunk(2, -1)
    inner = F.silu(short_conv(inner, w["conv1d.weight"], w["conv1d.bias"]))
    step, b, c = linear(inner, w, "x_proj").split([RANK, STATES, STATES], -1)
    step = F.softplus(linear(step, w, "dt_proj"))
    a, state, outputs = -w["A_log"].exp(), 0, []
    for t in range(x.shape[0]):
        state = (step[t][:, None] * a).exp() * state + (step[t] * inner[t])[:, None] * b[t]
        outputs.append(state @ c[t] + w["D"] * inner[t])
    return linear(torch.stack(outputs) * F.silu(gate), w, "out_proj")


MIXERS = {"MHA": attention, "BaseConv": base_conv, "Based": based, "ReBased": rebased, "Hyena": hyena,
          "RWKVTimeMixer": rwkv, "Mamba": mamba}


def mamba_block(stream, w, block):
    rms = stream / (stream.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    own = {name[len(block + "mixer."):]: tensor for name, tensor in w.items()
           if name.startswith(block + "mixer.")}
    return mamba(own, rms * w[block + "norm.weight"], None)


def log_probs(config, w, ids):
    """Branches are added before the next norm, so an identity as the state mixer adds the output of the
    second norm."""
    table = w["backbone.embeddings.word_embeddings.weight"]
    stream = table[torch.tensor(ids)]
    if config["max_position_embeddings"] > 0:
        stream = stream + w["backbone.embeddings.position_embeddings.weight"][:len(ids)]
    for layer in range(config["n_layers"]):
        block = f"backbone.layers.{layer}."
        if config["block_type"] == "MambaBlock":
            stream = stream + mamba_block(stream, w, block)
            continue
        described, prefix = in_layer(config, layer)
        own = {name[len(prefix):]: tensor for name, tensor in w.items() if name.startswith(prefix)}
        mix = MIXERS[class_of(described)]
        stream = stream + mix(own, layer_norm(stream, w, block + "norm1"), described["kwargs"])
        branch = layer_norm(stream, w, block + "norm2")
        if config["state_mixer"] == MLP:
            inner = F.gelu(linear(branch, w, block + "state_mixer.fc1"))
            branch = linear(inner, w, block + "state_mixer.fc2")
        stream = stream + branch
    last = layer_norm(stream, w, "backbone.ln_f", config["layer_norm_epsilon"])
    return next_token_log_probs(last @ table.t(), ids)


class AuthorsZoology(AuthorsTest):
    def check_config(self, config, weights=None):
        self.check(weights or weights_of(config), config, "zoology",
                   lambda w, ids: log_probs(config, w, ids))

    def test_every_mixer(self):
        for name in MIXERS:
            with self.subTest(name):
                self.check_config(config_of(module(name)))

    def test_every_mixer_after_a_convolution(self):
        for name in MIXERS:
            with self.subTest(name):
                self.check_config(config_of(hybrid(module("BaseConv"), module(name))))

    def test_a_short_list_of_mixers_is_repeated(self):
        config = config_of(hybrid(module("BaseConv"), module("MHA"), module("Based")), layers=5)
        self.check_config(config)

    def test_mlp_and_no_positions(self):
        self.check_config(config_of(module("RWKVTimeMixer"), state_mixer=MLP, max_position_embeddings=0))

    def test_models_of_mamba_blocks(self):
        """The name of the sequence mixer is ignored."""
        for name in ("Mamba", "MHA"):
            with self.subTest(name):
                described = module(name) | {"kwargs": {"d_state": STATES}}
                self.check_config(config_of(described, block_type="MambaBlock", layers=3,
                                            layer_norm_epsilon=1e-2))

    def test_a_last_norm_of_another_eps(self):
        self.check_config(config_of(module("Mamba"), layer_norm_epsilon=1e-2))

    def test_a_vocabulary_is_rounded_up(self):
        config = config_of(module("MHA", bias=False), pad_vocab_size_multiple=16)
        self.check_config(config, weights_of(config | {"vocab_size": 64}))

    def test_convolutions(self):
        self.check_config(config_of(module("BaseConv", kernel_size=-1)))
        self.check_config(config_of(module("BaseConv", kernel_size=[4, -1, 1], use_act=True), layers=3))

    def test_rebased_with_partial_norms(self):
        for gamma in (True, False):
            with self.subTest(gamma=gamma):
                parts = {"use_gamma": gamma, "use_beta": gamma, "normalize": False}
                self.check_config(config_of(hybrid(module("BaseConv"), module("ReBased", **parts))))

    def test_an_unused_beta_of_rebased_is_reported(self):
        parts = {"use_gamma": True, "use_beta": False, "normalize": False}
        config = config_of(hybrid(module("BaseConv"), module("ReBased", **parts)))
        self.check_config(config)
        self.tearDown()
        self.setUp()
        mixer = "backbone.layers.1.sequence_mixer.mixer."
        self.assertIn("left out: 2 tensors that the class declares and never uses: "
                      f"{mixer}ln_k.beta, {mixer}ln_q.beta\n",
                      self.import_folder(weights_of(config), config, "zoology"))

    def test_a_head_equal_to_the_embedding_is_tied(self):
        config = config_of(module("Based"))
        weights = weights_of(config)
        weights["lm_head.weight"] = weights["backbone.embeddings.word_embeddings.weight"].clone()
        self.check_config(config, weights)
        self.assertIn("tied: true", (self.dir / "run" / "config.textproto").read_text())

    def test_the_objective_labelled_is_kept(self):
        config = config_of(module("BaseConv"), objective="labelled")
        self.import_folder(weights_of(config), config, "zoology")
        self.assertIn("labelled", (self.dir / "run" / "config.textproto").read_text())
        config["objective"] = "masked_token"
        self.tearDown()
        self.setUp()
        self.assertIn("Use next_token or labelled.",
                      self.import_folder(weights_of(config), config, "zoology", code=3))

    def test_tensors_that_do_not_fit_are_listed(self):
        config = config_of(hybrid(module("Hyena"), module("MHA")))
        weights = weights_of(config)
        hyena_filter = "backbone.layers.0.sequence_mixer.mixer.filter_fn.implicit_filter."
        weights[hyena_filter + "5.freq"] += 1
        heads = "backbone.layers.1.sequence_mixer."
        weights[heads + "Wqkv.weight"] = weights.pop(heads + "mixer.Wqkv.weight")
        weights[heads + "mixer.Wqkv.bias"] = weights[heads + "mixer.Wqkv.bias"][:DIM].clone()
        output = self.import_folder(weights, config, "zoology", code=3)
        for part in (f"missing: {heads}mixer.Wqkv.weight [96, 32]",
                     f"unexpected: {heads}Wqkv.weight [96, 32]",
                     f"unexpected: {hyena_filter}5.freq [1, 16]",  # other sines than the first layer's
                     f"{heads}mixer.Wqkv.bias: file [32], model [96]"):
            self.assertIn(part, output)
        self.assertFalse((self.dir / "run").exists())

    def test_unsupported_options_are_refused(self):
        for config, part in (
                (config_of(module("MHA"), block_type="ParallelBlock"), "block_type is 'ParallelBlock'"),
                (config_of(module("Mamba"), block_type="MambaBlock", resid_dropout=0.5),
                 "resid_dropout is 0.5, which a model of MambaBlocks applies only before its last norm"),
                (config_of(module("MHA"), pre_norm=False), "pre_norm is false"),
                (config_of({"name": "zoology.mixers.h3.H3", "kwargs": {}}),
                 "'H3'. Only these classes and Hybrids of them are supported: "
                 "MHA, BaseConv, Based, ReBased, Hyena, RWKVTimeMixer, Mamba"),
                (config_of(hybrid(module("BaseConv"), module("Hyena", num_heads=2))), "num_heads is 2"),
                (config_of(module("Based", num_key_value_heads=3)), "num_key_value_heads is 3"),
                (config_of(module("BaseConv", kernel_size=[3])), "no number for layer 1"),
                (config_of(module("MHA"), state_mixer={"name": "zoology.mixers.mlp.GLU"}), "'GLU'. Only MLP"),
                (config_of(module("MHA"), state_mixer="Identity"), 'state_mixer is not an object. Write "state_mixer": '
                 '{"name": "torch.nn.Identity", "kwargs": {}}.'),
                (config_of("MHA"), 'sequence_mixer is not an object. Write "sequence_mixer": {"name": "zoology'),
                ({"d_model": DIM}, "sequence_mixer is not given")):
            with self.fresh(part):
                weights = weights_of(config_of(module("MHA")))
                self.assertIn(part, self.import_folder(weights, config, "zoology", code=3))


if __name__ == "__main__":
    engine.main()
