#!/usr/bin/env python3
"""Tests halflife import --layout leap and fastformer. The scores of checkpoints with their authors' tensor
names must equal a forward in fp64, which computes the sum of each token's window directly.

    .venv-compare/bin/python tests/interop/authors_leap_test.py build/cpu/tests/engine_server
"""

import engine
from authors_fixture import (DIM, HEADS, POSITIONS, VOCAB, AuthorsTest, layer_norm, linear,
                             next_token_log_probs, random_weights)
import torch
import torch.nn.functional as F

WINDOWS = [POSITIONS, 4, 9, 4]
HEAD_DIM = DIM // HEADS


def shapes_of(preset, layers):
    fastformer, v011 = preset.startswith("fastformer"), preset.endswith("v011")
    decoder = "fastformer_model." if fastformer else "leap_model."
    norm = decoder + "LayerNorm" if preset == "fastformer_seed" else "last_norm"
    shapes = {"word_embedding.weight": [VOCAB, DIM], norm + ".weight": [DIM], norm + ".bias": [DIM],
              decoder + "position_embeddings.weight": [POSITIONS, DIM]}
    if fastformer or v011:
        shapes["proj_logits.bias"] = [VOCAB]
    for layer in range(layers):
        prefix = f"{decoder}decoders.{layer}."
        attention = prefix + "attention." if fastformer or v011 else prefix
        for norm in (prefix + "boom_norm", attention + "attn_norm"):
            shapes |= {norm + ".weight": [DIM], norm + ".bias": [DIM]}
        shapes |= {prefix + "boom.weight": [4 * DIM, DIM], prefix + "unboom.weight": [DIM, 4 * DIM]}
        if not fastformer and not v011:
            shapes |= {prefix + "boom.bias": [4 * DIM], prefix + "unboom.bias": [DIM]}
        shapes |= {attention + name: shape for name, shape in mixer_shapes(preset).items()}
    return shapes


def mixer_shapes(preset):
    square, vector = [DIM, DIM], [HEADS, HEAD_DIM]
    return {
        "leap_v011": {"Wq.weight": square, "Wk.weight": square, "Wv.weight": square, "gate.weight": square,
                      # The class declares these tensors, but does not use them.
                      "vec": [DIM], "qk_norm.weight": [HEAD_DIM], "qk_norm.bias": [HEAD_DIM]},
        "leap_v101": {"projections.weight": [4 * DIM, DIM]},
        "leap_latest": {"leap.projections.weight": [4 * DIM, DIM]},
        "fastformer_seed": {"Wquery.weight": square, "Wkeys.weight": square, "Wvalues.weight": square,
                            "attn_proj.weight": square, "query_attn": [DIM], "key_attn": [DIM],
                            "mid_norm.weight": [DIM], "mid_norm.bias": [DIM]},
        "fastformer_v011": {"Wquery.weight": square, "Wkeys.weight": square, "Wvalues.weight": square,
                            "query_attn": vector, "key_attn": vector},
        "fastformer_latest": {"projections.weight": [3 * DIM, DIM], "query_attn": vector,
                              "key_attn": vector},
    }[preset]


def config_of(preset, windows=WINDOWS, **more):
    """Returns a config as the authors' classes save it, with the options of the release."""
    heads = "n_head" if preset in ("leap_v101", "leap_latest") else "n_heads"
    config = {"model_type": "LeapForCausalLM", "hidden_size": DIM, "vocab_size": VOCAB, heads: HEADS,
              "use_local_att": True, "window_sizes": windows, "n_positions": POSITIONS,
              "n_layer": len(windows or WINDOWS), "hidden_dropout_prob": 0.1, "initializer_range": 0.02}
    if preset in ("leap_v101", "fastformer_latest"):
        config["rescale"] = 8
    return config | more


def real_norm(x, eps):
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps)


def pool(weight, payload, window, eps):
    """Returns the weighted mean of `payload` [T, H, P] over the window of each token. `weight` is [T, H]."""
    place = torch.arange(weight.shape[0])
    distance = place[:, None] - place
    seen = ((distance >= 0) & (distance < window)).to(weight.dtype)
    total = torch.einsum("ij,jh->ih", seen, weight) + eps
    return torch.einsum("ij,jh,jhp->ihp", seen, weight, payload) / total[..., None]


def split(x):
    return x.unflatten(-1, (HEADS, HEAD_DIM))


def leap_mixer(preset, w, x, window):
    if preset == "leap_v011":
        q, k, v = (split(linear(x, w, name)) for name in ("Wq", "Wk", "Wv"))
        logit = (real_norm(q, 0) * real_norm(k, 0)).sum(-1) * 5 / HEAD_DIM
        return torch.sigmoid(linear(x, w, "gate")) * pool(logit.exp(), v, window, 0).flatten(1)
    name = "projections" if preset == "leap_v101" else "leap.projections"
    q, f, k, v = (split(y) for y in linear(x, w, name).chunk(4, -1))
    scale = HEAD_DIM ** -0.5
    if preset == "leap_v101":
        q, f, k, v = (real_norm(y, 1e-5) for y in (q, f, k, v))
        scale = 8 / HEAD_DIM
    logit = (f * k).sum(-1) * scale
    weight = logit.exp() if preset == "leap_v101" else F.elu(logit) + 1
    pooled = pool(weight, torch.cat([k, v], -1), window, 1e-5)
    gate = torch.sigmoid((q * pooled[..., :HEAD_DIM]).sum(-1, keepdim=True) * scale)
    return (gate * pooled[..., HEAD_DIM:]).flatten(1)


def fastformer_mixer(preset, w, x, window, rescale):
    if preset == "fastformer_v011":
        q, k, v = (linear(x, w, name) for name in ("Wquery", "Wkeys", "Wvalues"))
    else:
        q, k, v = linear(x, w, "projections").chunk(3, -1)

    def pooled(y, name):
        heads = real_norm(split(y), 1e-5)
        logit = (heads * real_norm(w[name], 1e-5)).sum(-1) * rescale / HEAD_DIM
        return pool(logit.exp(), heads, window, 0 if preset == "fastformer_v011" else 1e-5).flatten(1)

    return pooled(pooled(q, "query_attn") * k, "key_attn") * v


def seed_layer(w, h, window):
    """Returns fastformer_seed's attention. It is added to the output h of the norm instead of the norm's
    input."""
    def pooled(y, name):
        heads = split(y)
        logit = (heads * split(w[name])).sum(-1) / HEAD_DIM ** 0.5
        return pool(logit.exp(), heads, window, 0).flatten(1)

    query = linear(pooled(linear(h, w, "Wquery"), "query_attn"), w, "attn_proj")
    residual = h + query * linear(h, w, "Wkeys")
    return residual + pooled(layer_norm(residual, w, "mid_norm"), "key_attn") * linear(h, w, "Wvalues")


def log_probs(preset, w, ids, windows, rescale):
    decoder = "fastformer_model." if preset.startswith("fastformer") else "leap_model."
    x = w["word_embedding.weight"][torch.tensor(ids)] + w[decoder + "position_embeddings.weight"][:len(ids)]
    if preset == "fastformer_seed":
        x = layer_norm(x, w, decoder + "LayerNorm")
    for layer, window in enumerate(windows):
        prefix = f"{decoder}decoders.{layer}."
        attention = prefix + "attention." if prefix + "attention.attn_norm.weight" in w else prefix
        own = {name[len(attention):]: tensor for name, tensor in w.items() if name.startswith(attention)}
        h = layer_norm(x, w, attention + "attn_norm")
        if preset == "fastformer_seed":
            x = seed_layer(own, h, window)
        elif preset.startswith("leap"):
            x = x + leap_mixer(preset, own, h, window)
        else:
            x = x + fastformer_mixer(preset, own, h, window, rescale)
        inner = F.gelu(linear(layer_norm(x, w, prefix + "boom_norm"), w, prefix + "boom"))
        x = x + linear(inner, w, prefix + "unboom")
    if preset == "fastformer_seed":
        logits = F.linear(x, w["word_embedding.weight"], w["proj_logits.bias"]) / DIM ** 0.5
    else:
        logits = F.linear(layer_norm(x, w, "last_norm"), w["word_embedding.weight"],
                          w.get("proj_logits.bias"))
    return next_token_log_probs(logits, ids)


class AuthorsLeap(AuthorsTest):
    def check_preset(self, preset, config, windows=WINDOWS, rescale=8.0):
        with self.subTest(preset):
            layout = preset.split("_")[0]
            weights = random_weights(shapes_of(preset, len(windows)))
            self.check(weights, config, layout,
                       lambda w, ids: log_probs(preset, w, ids, windows, rescale))

    def test_every_release(self):
        for preset in ("leap_v011", "leap_v101", "leap_latest", "fastformer_latest"):
            self.check_preset(preset, config_of(preset))
        self.check_preset("fastformer_v011", config_of("fastformer_v011"), rescale=5)

    def test_fastformer_seed(self):
        """The version without windows is recognised by its transformers names. The later one needs
        `preset`."""
        sizes = {"model_type": "FastformerForCausalLM", "hidden_size": DIM, "vocab_size": VOCAB,
                 "n_heads": HEADS, "num_hidden_layers": len(WINDOWS), "max_position_embeddings": POSITIONS,
                 "convolve": False, "groups": 1, "kernel_size": 4, "label_smoothing": 0}
        self.check_preset("fastformer_seed", sizes, [POSITIONS] * len(WINDOWS))
        text = (self.dir / "run" / "config.textproto").read_text()
        for part in ("logit_scale: 0", "mixer_residual_post_norm: true", "final_norm {\n    none {"):
            self.assertIn(part, text)
        config = config_of("fastformer_seed") | {"preset": "fastformer_seed"}
        self.check_preset("fastformer_seed", config)
        self.check_preset("fastformer_seed", config | {"window_sizes": None}, [4, 8, 16, POSITIONS])
        self.tearDown()
        self.setUp()
        weights = random_weights(shapes_of("fastformer_seed", len(WINDOWS)))
        self.assertIn("convolve is true: its convolution is not read",
                      self.import_folder(weights, sizes | {"convolve": True}, "fastformer", code=3))

    def test_rescale_value_of_an_intermediate_release(self):
        self.check_preset("fastformer_v011", config_of("fastformer_v011", rescale_value=7), rescale=7)

    def test_default_windows_of_each_release(self):
        for preset, windows in (("leap_v011", [4, 8, 16, POSITIONS]),
                                ("leap_v101", [POSITIONS, 4, 8, 16]),
                                ("leap_latest", [POSITIONS, 4, 8, 16]),
                                ("fastformer_latest", [POSITIONS, 4, 8, POSITIONS])):
            self.check_preset(preset, config_of(preset, windows=None), windows)

    def test_no_windows(self):
        config = config_of("leap_latest", windows=None, use_local_att=False)
        self.check_preset("leap_latest", config, [POSITIONS] * 4)

    def test_unused_tensors_of_the_first_release_are_reported(self):
        weights = random_weights(shapes_of("leap_v011", len(WINDOWS)))
        output = self.import_folder(weights, config_of("leap_v011"), "leap")
        self.assertIn("left out: 12 tensors that the class declares and never uses: "
                      "leap_model.decoders.0.attention.qk_norm.bias, ", output)
        self.assertIn(", ...\n", output)

    def test_preset_overrides_the_detected_release(self):
        config = config_of("leap_latest") | {"preset": "leap_latest", "n_heads": HEADS}
        del config["n_head"]  # without `preset`, this config would be read as release 0.1.1
        self.check_preset("leap_latest", config)

    def test_a_head_equal_to_the_embedding_is_tied(self):
        weights = random_weights(shapes_of("leap_latest", len(WINDOWS)))
        weights["proj_logits.weight"] = weights["word_embedding.weight"].clone()
        self.check(weights, config_of("leap_latest"), "leap",
                   lambda w, ids: log_probs("leap_latest", w, ids, WINDOWS, 8))
        self.assertIn("tied: true", (self.dir / "run" / "config.textproto").read_text())

    def test_tensors_that_do_not_fit_are_listed(self):
        weights = random_weights(shapes_of("leap_latest", len(WINDOWS)))
        weights["leap_model.decoders.1.surplus"] = weights.pop("leap_model.decoders.1.boom.bias")
        weights["last_norm.bias"] = weights["last_norm.bias"][1:].clone()
        output = self.import_folder(weights, config_of("leap_latest"), "leap", code=3)
        for part in ("missing: leap_model.decoders.1.boom.bias [128]",
                     "unexpected: leap_model.decoders.1.surplus [128]",
                     "last_norm.bias: file [31], model [32]"):
            self.assertIn(part, output)
        self.assertFalse((self.dir / "run").exists())

    def test_unsupported_options_are_refused(self):
        for change, part in (({"rnn": True}, "rnn is true"),
                             ({"window_sizes": [4, 0, 4, 4]}, "window_sizes holds 0"),
                             ({"window_sizes": [4, 4]}, "window_sizes has 2 windows for 4 layers"),
                             ({"preset": "leap_v012"}, "one of leap_v011, leap_v101, leap_latest"),
                             ({"preset": "leap_v101"}, "rescale is null")):
            with self.fresh(part):
                config = config_of("leap_latest") | change
                weights = random_weights(shapes_of("leap_latest", len(WINDOWS)))
                self.assertIn(part, self.import_folder(weights, config, "leap", code=3))


if __name__ == "__main__":
    engine.main()
