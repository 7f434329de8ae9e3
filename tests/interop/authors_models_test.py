#!/usr/bin/env python3
"""Tests halflife import --layout d2d and d2d_ape. The scores of checkpoints with their authors' tensor names
must equal a forward in fp64.

    .venv-compare/bin/python tests/interop/authors_models_test.py build/cpu/tests/engine_server
"""

import engine
from authors_fixture import (DIM, HEADS, LAYERS, POSITIONS, VOCAB, WIDTH, AuthorsTest, layer_norm, linear,
                             next_token_log_probs, random_weights)
from engine import halflife
import torch
import torch.nn.functional as F

D2D_CLASSES = {
    "LinearEluWithD2DLMHeadModel": ("elu", "d2d", False),
    "LinearExpWithD2DLMHeadModel": ("exp", "d2d", False),
    "LinearEluWithALiBiLMHeadModel": ("elu", "alibi", False),
    "TrainingEluALiBiLMHeadModel": ("elu", "trained_alibi", False),
    "LinearExpWithVanillaAPELMHeadModel": ("exp", "none", True),
    "LinearEluWithRoPEModel": ("elu", "rope", False),
    "LinearExpWithRoPEModel": ("exp", "rope", False),
}


def d2d_tensors(decay, ape):
    shapes = {"transformer.wte.weight": [VOCAB, DIM], "transformer.ln_f.weight": [DIM],
              "transformer.ln_f.bias": [DIM]}
    if ape:
        shapes["transformer.wpe.weight"] = [POSITIONS, DIM]
    for layer in range(LAYERS):
        prefix = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{prefix}{norm}.weight": [DIM], f"{prefix}{norm}.bias": [DIM]}
        shapes |= {prefix + "attn.c_attn.weight": [DIM, 3 * DIM], prefix + "attn.c_attn.bias": [3 * DIM],
                   prefix + "attn.c_proj.weight": [DIM, DIM], prefix + "attn.c_proj.bias": [DIM]}
        if decay == "d2d":
            shapes[prefix + "attn.Ps"] = [1, DIM]
        if decay == "trained_alibi":
            shapes[prefix + "attn.head_gamma"] = [HEADS]
        if ape:
            shapes |= {prefix + "mlp.c_fc.weight": [DIM, WIDTH], prefix + "mlp.c_fc.bias": [WIDTH],
                       prefix + "mlp.c_proj.weight": [WIDTH, DIM], prefix + "mlp.c_proj.bias": [DIM]}
        else:
            for name, shape in (("fc1", [WIDTH, DIM]), ("fc2", [WIDTH, DIM]), ("fc3", [DIM, WIDTH])):
                shapes |= {f"{prefix}glu.{name}.weight": shape, f"{prefix}glu.{name}.bias": shape[:1]}
    return shapes


def d2d_weights(decay, ape):
    weights = random_weights(d2d_tensors(decay, ape))
    for name, tensor in weights.items():
        if name.endswith("head_gamma"):
            tensor -= 0.1  # so that some values are above the clamp at 0 and others below
    return weights


def legacy_view_attention(w, x, row_len):
    """Attention with the factors of the public elu training code: exp(i Ps) of [1, L, D], viewed as [1, H, L,
    d]."""
    steps, head_dim = x.shape[0], DIM // HEADS
    q, k, v = (x @ w["c_attn.weight"] + w["c_attn.bias"]).split(DIM, dim=-1)
    q, k, v = (y.unflatten(-1, (HEADS, head_dim)).transpose(0, 1) for y in (q, k, v))
    table = (torch.arange(row_len, dtype=x.dtype)[:, None] * w["Ps"]).exp()
    seen = table[None].view(1, HEADS, row_len, head_dim)[0, :, :steps]
    base = -(2.0 ** (-HEADS / torch.arange(1, HEADS + 1, dtype=x.dtype)))
    place = torch.arange(steps, dtype=x.dtype)
    mask = (base[:, None, None] * (place[:, None] - place)).exp()
    scores = ((F.elu(q) + 1) / seen) @ ((F.elu(k) + 1) * seen).transpose(1, 2)
    scores = (scores * mask).tril()
    o = (scores / scores.sum(-1, keepdim=True)) @ v
    return o.transpose(0, 1).flatten(1) @ w["c_proj.weight"] + w["c_proj.bias"]


def rotated(x):
    """Rotates x [T, H, d]: channels 2p and 2p + 1 by 10000^(-2p/d) per token."""
    pair = torch.arange(0, x.shape[-1], 2, dtype=x.dtype)
    angles = torch.arange(len(x), dtype=x.dtype)[:, None, None] * 10000.0 ** (-pair / x.shape[-1])
    a, b, cos, sin = x[..., 0::2], x[..., 1::2], angles.cos(), angles.sin()
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


def d2d_attention(w, x, feature_map, decay, row_len=0):
    """Computes attention in quadratic form: weights phi(q_i) . phi(k_j) gamma^(i-j), divided by their sum.
    With RoPE, the weights have rotated features, but their sum does not."""
    if row_len > 0:
        return legacy_view_attention(w, x, row_len)
    steps, head_dim = x.shape[0], DIM // HEADS
    q, k, v = (x @ w["c_attn.weight"] + w["c_attn.bias"]).split(DIM, dim=-1)
    q, k, v = (y.unflatten(-1, (HEADS, head_dim)) for y in (q, k, v))
    phi = torch.exp if feature_map == "exp" else lambda y: F.elu(y) + 1
    head = torch.arange(1, HEADS + 1, dtype=x.dtype)
    log_decay = torch.zeros(HEADS, head_dim, dtype=x.dtype)
    if decay in ("d2d", "alibi"):
        log_decay = (-(2.0 ** (-HEADS / head)))[:, None].expand(HEADS, head_dim)
    if decay == "d2d":
        log_decay = log_decay - (0.02 if feature_map == "exp" else 1) * w["Ps"].view(HEADS, head_dim)
    if decay == "trained_alibi":
        log_decay = w["head_gamma"].clamp_max(0)[:, None].expand(HEADS, head_dim)
    place = torch.arange(steps, dtype=x.dtype)
    distance = (place[:, None] - place).clamp_min(0)
    gamma = (distance[..., None, None] * log_decay).exp()
    scores = torch.einsum("ihc,jhc,ijhc->hij", phi(q), phi(k), gamma).tril()
    total = scores.sum(-1, keepdim=True)
    if decay == "rope":
        scores = torch.einsum("ihc,jhc->hij", rotated(phi(q)), rotated(phi(k))).tril()
    weights = scores / total
    return torch.einsum("hij,jhc->ihc", weights, v).flatten(1) @ w["c_proj.weight"] + w["c_proj.bias"]


def d2d_log_probs(w, ids, feature_map, decay, ape, row_len=0):
    x = w["transformer.wte.weight"][torch.tensor(ids)]
    if ape:
        x = x + w["transformer.wpe.weight"][:len(ids)]
    for layer in range(LAYERS):
        prefix = f"transformer.h.{layer}."
        own = {n[len(prefix) + 5:]: t for n, t in w.items() if n.startswith(prefix + "attn.")}
        x = x + d2d_attention(own, layer_norm(x, w, prefix + "ln_1"), feature_map, decay,
                              row_len)
        h = layer_norm(x, w, prefix + "ln_2")
        if ape:
            inner = F.gelu(h @ w[prefix + "mlp.c_fc.weight"] + w[prefix + "mlp.c_fc.bias"],
                           approximate="tanh")
            x = x + inner @ w[prefix + "mlp.c_proj.weight"] + w[prefix + "mlp.c_proj.bias"]
        else:
            gated = linear(h, w, prefix + "glu.fc1") * F.silu(linear(h, w, prefix + "glu.fc2"))
            x = x + linear(gated, w, prefix + "glu.fc3")
    return next_token_log_probs(layer_norm(x, w, "transformer.ln_f") @ w["transformer.wte.weight"].t(), ids)


def d2d_config(class_name):
    return {"model_type": "gpt2", "architectures": [class_name], "vocab_size": VOCAB, "n_embd": DIM,
            "n_layer": LAYERS, "n_head": HEADS, "n_inner": WIDTH, "n_positions": POSITIONS,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1,
            "resid_pdrop": 0.1, "embd_pdrop": 0.1}


class AuthorsModels(AuthorsTest):
    def test_d2d(self):
        for name, (feature_map, decay, ape) in D2D_CLASSES.items():
            with self.subTest(name):
                def log_probs(w, ids, form=(feature_map, decay, ape)):
                    return d2d_log_probs(w, ids, *form)
                self.check(d2d_weights(decay, ape), d2d_config(name), "d2d_ape" if ape else "d2d", log_probs)

    def test_legacy_view(self):
        """legacy_view is a key of halflife. It is the row length of the public elu training, whose view mixes
        the Ps of different heads."""
        row_len = 230
        weights = d2d_weights("d2d", ape=False)
        for name, tensor in weights.items():
            if name.endswith("Ps"):
                tensor *= 0.2  # exp(229 Ps) must be representable in fp32
        config = d2d_config("LinearEluWithD2DLMHeadModel") | {"legacy_view": row_len}

        def log_probs(w, ids):
            return d2d_log_probs(w, ids, "elu", "d2d", False, row_len)
        self.check(weights, config, "d2d", log_probs)
        text = (self.dir / "run" / "config.textproto").read_text()
        self.assertIn(f"legacy_view: {row_len}", text)
        self.assertIn(f"seq_len: {row_len}", text)

    def test_legacy_view_requires_elu(self):
        config = d2d_config("LinearExpWithD2DLMHeadModel") | {"legacy_view": 512}
        output = self.import_folder(d2d_weights("d2d", ape=False), config, "d2d", code=3)
        self.assertIn("legacy_view 512 with the decay d2d and the feature map exp", output)

    def test_missing_and_unexpected_tensors_are_listed(self):
        weights = d2d_weights("d2d", ape=False)
        weights["transformer.h.1.attn.Qs"] = weights.pop("transformer.h.1.attn.Ps")
        output = self.import_folder(weights, d2d_config("LinearEluWithD2DLMHeadModel"), "d2d", code=3)
        for part in ("transformer.h.1.attn.Ps", "transformer.h.1.attn.Qs"):
            self.assertIn(part, output)
        self.assertFalse((self.dir / "run").exists())

    def test_unknown_classes_are_refused_with_the_known_ones(self):
        folder = self.make_folder(d2d_weights("none", ape=True),
                                  d2d_config("LinearExpWithVanillaAPELMHeadModel"))
        for layout, known, code in (("d2d", "EluWithD2D", 3), ("d3d", "d2d_ape", 2),
                                    ("d2d", "do not rename it: the weights would be read as another", 3)):
            output = halflife("import", "--from", folder, "--layout", layout, "--out", self.dir / "run",
                                   code=code)
            self.assertIn(known, output)


if __name__ == "__main__":
    engine.main()
