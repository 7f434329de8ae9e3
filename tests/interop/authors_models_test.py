#!/usr/bin/env python3
"""halflife import --layout: checkpoints under their authors' own names, against forwards written out
here in fp64.

    .venv-compare/bin/python tests/interop/authors_models_test.py build/cpu/src/cli/halflife
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
    import torch.nn.functional as F
    from safetensors.torch import save_file
except ImportError as error:
    print(f"SKIPPED: authors_models_test: {error} (launch/setup --tests)")
    sys.exit(77)

HALFLIFE = ""
# fp32 there, fp64 here: rounding of logits of order 10 in two layers.
TOLERANCE = 2e-5
VOCAB, DIM, HEADS, LAYERS, WIDTH, POSITIONS = 61, 32, 4, 2, 48, 256
LENGTHS = (2, 29, 64, 65, 200)

D2D_CLASSES = {
    "LinearEluWithD2DLMHeadModel": ("elu", "d2d", False),
    "LinearExpWithD2DLMHeadModel": ("exp", "d2d", False),
    "LinearEluWithALiBiLMHeadModel": ("elu", "alibi", False),
    "TrainingEluALiBiLMHeadModel": ("elu", "trained_alibi", False),
    "LinearExpWithVanillaAPELMHeadModel": ("exp", "none", True),
}


def halflife(*arguments, code=0):
    done = subprocess.run([HALFLIFE, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


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
    torch.manual_seed(6)
    weights = {}
    for name, shape in d2d_tensors(decay, ape).items():
        weights[name] = 0.2 * torch.randn(shape)
        if ".ln_" in name and name.endswith("weight"):
            weights[name] += 1
        if name.endswith("head_gamma"):
            weights[name] -= 0.1  # one above the clamp at 0 or two below it
    return weights


def d2d_attention(w, x, feature_map, decay):
    """Quadratic: weights phi(q_i) . phi(k_j) gamma^(i-j), divided by their sum."""
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
    weights = scores / scores.sum(-1, keepdim=True)
    return torch.einsum("hij,jhc->ihc", weights, v).flatten(1) @ w["c_proj.weight"] + w["c_proj.bias"]


def d2d_log_probs(weights, ids, feature_map, decay, ape):
    w = {name: tensor.double() for name, tensor in weights.items()}
    def norm(x, name):
        return F.layer_norm(x, (DIM,), w[name + ".weight"], w[name + ".bias"], 1e-5)
    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])
    x = w["transformer.wte.weight"][torch.tensor(ids)]
    if ape:
        x = x + w["transformer.wpe.weight"][:len(ids)]
    for layer in range(LAYERS):
        prefix = f"transformer.h.{layer}."
        own = {n[len(prefix) + 5:]: t for n, t in w.items() if n.startswith(prefix + "attn.")}
        x = x + d2d_attention(own, norm(x, prefix + "ln_1"), feature_map, decay)
        h = norm(x, prefix + "ln_2")
        if ape:
            inner = F.gelu(h @ w[prefix + "mlp.c_fc.weight"] + w[prefix + "mlp.c_fc.bias"],
                           approximate="tanh")
            x = x + inner @ w[prefix + "mlp.c_proj.weight"] + w[prefix + "mlp.c_proj.bias"]
        else:
            x = x + linear(linear(h, prefix + "glu.fc1") * F.silu(linear(h, prefix + "glu.fc2")),
                           prefix + "glu.fc3")
    logits = norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].t()
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]


class AuthorsModels(unittest.TestCase):
    def setUp(self):
        self._holder = tempfile.TemporaryDirectory(prefix="halflife_authors_")
        self.dir = pathlib.Path(self._holder.name)

    def tearDown(self):
        self._holder.cleanup()

    def make_d2d(self, class_name, change=lambda weights: None):
        _, decay, ape = D2D_CLASSES[class_name]
        weights = d2d_weights(decay, ape)
        change(weights)
        folder = self.dir / "theirs"
        folder.mkdir()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config = {"model_type": "gpt2", "architectures": [class_name], "vocab_size": VOCAB,
                  "n_embd": DIM, "n_layer": LAYERS, "n_head": HEADS, "n_inner": WIDTH,
                  "n_positions": POSITIONS, "activation_function": "gelu_new",
                  "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1}
        (folder / "config.json").write_text(json.dumps(config))
        return folder, weights

    def score(self, model, ids):
        (self.dir / "ids.json").write_text(json.dumps(ids))
        halflife("score", "--model", model, "--tokens", self.dir / "ids.json", "--out",
                 self.dir / "scores.jsonl", "--threads", 1)
        lines = (self.dir / "scores.jsonl").read_text().splitlines()
        return [torch.tensor(json.loads(line)["logprobs"], dtype=torch.float64) for line in lines]

    def test_d2d(self):
        generator = torch.Generator().manual_seed(5)
        ids = [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in LENGTHS]
        for name, (feature_map, decay, ape) in D2D_CLASSES.items():
            with self.subTest(name):
                self.tearDown()
                self.setUp()
                folder, weights = self.make_d2d(name)
                layout = "d2d_ape" if ape else "d2d"
                halflife("import", "--from", folder, "--layout", layout, "--out", self.dir / "run")
                for got, sequence in zip(self.score(self.dir / "run", ids), ids):
                    want = d2d_log_probs(weights, sequence, feature_map, decay, ape)
                    self.assertLess(float((got - want).abs().max()), TOLERANCE)

    def test_says_what_is_missing_or_left_over(self):
        def change(weights):
            weights["transformer.h.1.attn.Qs"] = weights.pop("transformer.h.1.attn.Ps")
        folder, _ = self.make_d2d("LinearEluWithD2DLMHeadModel", change)
        said = halflife("import", "--from", folder, "--layout", "d2d", "--out", self.dir / "run", code=3)
        for part in ("transformer.h.1.attn.Ps", "transformer.h.1.attn.Qs"):
            self.assertIn(part, said)
        self.assertFalse((self.dir / "run").exists())

    def test_says_which_classes_it_knows(self):
        folder, _ = self.make_d2d("LinearExpWithVanillaAPELMHeadModel")
        said = halflife("import", "--from", folder, "--layout", "d2d", "--out", self.dir / "run", code=3)
        self.assertIn("EluWithD2D", said)
        said = halflife("import", "--from", folder, "--layout", "d3d", "--out", self.dir / "run", code=3)
        self.assertIn("d2d_ape", said)


if __name__ == "__main__":
    HALFLIFE = sys.argv.pop(1)
    unittest.main()
