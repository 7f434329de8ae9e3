#!/usr/bin/env python3
"""Tests every position method of softmax attention. The scores must equal a forward in fp64 that computes
dense scores from the definition: at the training length and beyond it, in whole rows and in pieces with a
carried state.

    .venv-compare/bin/python tests/interop/authors_positions_test.py build/cpu/tests/engine_server
"""

import dataclasses
import math
import pathlib
import tempfile
from typing import Callable

import engine
from authors_fixture import DIM, LAYERS, WIDTH, AuthorsTest, linear, sequences
from engine import halflife
import torch
import torch.nn.functional as F

BYTES = 259  # ids of the tokenizer of bytes
TRAINED = 64  # the length of training
HEAD_DIM = 8
LENGTHS = (2, TRAINED, TRAINED + 1, 200)
# The first distances of buckets 16 to 31 of T5's 32, up to distance 128. Bucket n < 16 is distance n.
T5_BEGINS = (16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113)

RECIPE = """
data {{ seq_len: {trained} path: "{data}" }}
model {{
  model_dim: {dim} num_layers: {layers} initializer_range: 0.2
  mixer {{ softmax {{ num_heads: {heads} head_dim: {head_dim} {mixer} }} }}
  channel_mixer {{ swiglu {{ width: {width} }} }}
  {model}
}}
schedule {{ warmup_steps: 0 }}
train {{ steps: 1 global_batch: 1 micro_batch: 1 seed: 7 precision: "fp32" device: "cpu" threads: 1 }}
"""


def frequencies(base=10000.0):
    return base ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)


def is_earlier_or_same(i, j):
    return j <= i


@dataclasses.dataclass
class Method:
    """The scores of one method. i and j are the positions [T, T] of queries and keys."""
    model: str = ""  # part of the recipe
    mixer: str = ""
    heads: int = 4
    # The distance that rotations use instead of i - j; None: no rotation.
    angle: Callable | None = lambda i, j: i - j
    theta: torch.Tensor = dataclasses.field(default_factory=frequencies)
    rates: torch.Tensor | None = None  # log decay of each pair of channels per token
    factor: float = 1  # multiplies the scores
    bias: Callable | None = None  # (weights, prefix of a layer, i - j [T, T]) -> [H, T, T]
    visible: Callable = is_earlier_or_same
    temperature: Callable | None = None  # (number of visible keys of each query [T], T) -> factors [T]
    whole_scores: bool = False  # the temperature multiplies the bias, too
    cosine: float = 0
    embedded: Callable = lambda weights, x: x

    def scores(self, q, k, weights, prefix):
        """Returns the scores [H, T, T] before the mask. q and k are [T, H, d]."""
        q, k = q.transpose(0, 1), k.transpose(0, 1)
        if self.cosine:
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        place = torch.arange(q.shape[1])
        i, j = place[:, None], place[None, :]
        products = q @ k.mT if self.angle is None else self.rotated(q, k, i, j)
        products = products * (self.cosine or HEAD_DIM ** -0.5) * self.factor
        if self.temperature is not None:
            seen = self.visible(i, j).sum(1).double()
            factors = self.temperature(seen, q.shape[1])[:, None]
            products = products * factors
        if self.bias is None:
            return products
        bias = self.bias(weights, prefix, i - j)
        return products + (bias * factors if self.whole_scores else bias)

    def rotated(self, q, k, i, j):
        """Returns the sum over pairs (c, c + d/2) of (qa ka + qb kb) cos + (qa kb - qb ka) sin of angle
        theta."""
        (qa, qb), (ka, kb) = (x.unflatten(-1, (2, HEAD_DIM // 2)).unbind(-2) for x in (q, k))
        angle = self.angle(i, j).double()[..., None] * self.theta
        aligned = torch.einsum("hic,hjc->hijc", qa, ka) + torch.einsum("hic,hjc->hijc", qb, kb)
        crossed = torch.einsum("hic,hjc->hijc", qa, kb) - torch.einsum("hic,hjc->hijc", qb, ka)
        pairs = aligned * angle.cos() + crossed * angle.sin()
        if self.rates is not None:
            pairs = pairs * (self.rates * (i - j)[..., None].clamp(min=0)).exp()
        return pairs.sum(-1)

    def attention(self, q, k, v, weights, prefix):
        place = torch.arange(q.shape[0])
        hidden = ~self.visible(place[:, None], place[None, :])
        p = self.scores(q, k, weights, prefix).masked_fill(hidden, -math.inf).softmax(-1)
        return torch.einsum("hij,jhv->ihv", p, v).flatten(1)

    def log_probs(self, w, ids):
        x = self.embedded(w, w["embeddings.weight"][torch.tensor(ids[:-1])])  # the last token predicts nothing
        for layer in range(LAYERS):
            prefix = f"layers.{layer}."
            h = rms_norm(x, w[prefix + "attn_norm.weight"])
            q, k, v = (linear(h, w, f"{prefix}attn.{name}_proj").unflatten(1, (self.heads, HEAD_DIM))
                       for name in "qkv")
            x = x + linear(self.attention(q, k, v, w, prefix + "attn."), w, prefix + "attn.o_proj")
            h = rms_norm(x, w[prefix + "mlp_norm.weight"])
            inner = F.silu(linear(h, w, prefix + "mlp.gate_proj")) * linear(h, w, prefix + "mlp.up_proj")
            x = x + linear(inner, w, prefix + "mlp.down_proj")
        log_probs = linear(rms_norm(x, w["norm.weight"]), w, "lm_head").log_softmax(-1)
        return log_probs.gather(1, torch.tensor(ids)[1:, None])[:, 0]


def rms_norm(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def sinusoid(weights, x):
    place = torch.arange(x.shape[0], dtype=x.dtype)[:, None]
    angle = place * 10000.0 ** (-torch.arange(0, DIM, 2, dtype=x.dtype) / DIM)
    table = torch.empty_like(x)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return x + table


def xpos_rates(gamma=0.4, scale_base=512):
    share = torch.arange(HEAD_DIM // 2, dtype=torch.float64) / (HEAD_DIM // 2)
    return ((share + gamma) / (1 + gamma)).log() / scale_base


def alibi(*exponents):
    slopes = torch.tensor([2.0 ** -x for x in exponents], dtype=torch.float64)
    return lambda weights, prefix, distance: -slopes[:, None, None] * distance


def t5(weights, prefix, distance):
    begins = torch.tensor((*range(16), *T5_BEGINS))
    bucket = (distance.clamp(min=0)[..., None] >= begins).sum(-1) - 1
    return weights["positions.relative_attention_bias.weight"][bucket].permute(2, 0, 1)


def kerple(form):
    def bias(weights, prefix, distance):
        r1, r2 = (weights[f"{prefix}kerple.r{n}"][..., None] for n in (1, 2))  # [H, 1, 1]
        assert min(r1.min(), r2.min()) > 0.01 and r2.max() < 2, "a clamp of r1 or r2 is active"
        return -r1 * form(distance.clamp(min=0).double(), r2)
    return bias


def yarn(factor, length, fast=32, slow=1, truncate=True):
    """Returns YaRN's frequencies. Pairs with more than `fast` rotations over `length` keep their frequencies.
    Those with fewer than `slow` are interpolated."""
    def pair_of(turns):
        return HEAD_DIM * math.log(length / (2 * math.pi * turns)) / (2 * math.log(10000))
    floor, ceil = (math.floor, math.ceil) if truncate else (float, float)
    first, last = max(0, floor(pair_of(fast))), min(HEAD_DIM - 1, ceil(pair_of(slow)))
    pairs = torch.arange(HEAD_DIM // 2, dtype=torch.float64)
    kept = 1 - ((pairs - first) / (last - first)).clamp(0, 1)
    return frequencies() * (kept + (1 - kept) / factor)


def llama3(factor, length, fast=4, slow=1):
    """Returns Llama 3's frequencies. As yarn(), with weights that are linear in the number of rotations."""
    turns = length * frequencies() / (2 * math.pi)
    kept = ((turns - slow) / (fast - slow)).clamp(0, 1)
    return frequencies() * (kept + (1 - kept) / factor)


def streaming(sinks, window):
    """Returns distances within the cache of a query: its sinks, followed by its window."""
    def angle(i, j):
        distances = torch.zeros(len(i), len(i), dtype=torch.long)
        for query in range(len(i)):
            cached = [key for key in range(query + 1) if key < sinks or query - key < window]
            for place, key in enumerate(cached):
                distances[query, key] = len(cached) - 1 - place
        return distances
    return angle


def first_and_last(sinks, window):
    return lambda i, j: (j <= i) & ((j < sinks) | (i - j < window))


def clipped(window):
    return lambda i, j: (i - j).clamp(max=window)


def leaking(window, leak):
    return lambda i, j: torch.where(i - j < window, i - j, window + (i - j - window) / leak)


def blocks(size):
    return lambda i, j: (j <= i) & (i // size - j // size <= 1)


def window_of(size):
    return lambda i, j: (j <= i) & (i - j < size)


def info_scale(trained, dim=HEAD_DIM, least=1.0):
    def share(n):
        return (1 - n ** (-2 / dim)).sqrt()
    return lambda n, length: (share(n) / share(torch.tensor(float(trained)))).clamp(min=least)


def log_scale(trained, least=1.0):
    return lambda n, length: (n.log() / math.log(trained)).clamp(min=least)


def of_length(temperature):
    return lambda n, length: temperature(torch.full_like(n, length), length)


INFO = f'query_scale: "info" query_scale_length: {TRAINED}'
METHODS = {
    "rotary": Method(),
    "rotary_of_another_base": Method(mixer="rope_theta: 700", theta=frequencies(700.0)),
    "none": Method(mixer="rope_theta: 0", angle=None),
    "learned": Method(model="positions { learned { max_positions: 200 } }", mixer="rope_theta: 0", angle=None,
                      embedded=lambda w, x: x + w["positions.weight"][:len(x)]),
    "sinusoidal": Method(model="positions { sinusoidal {} }", mixer="rope_theta: 0", angle=None,
                         embedded=sinusoid),
    "sinusoidal_after_the_scale": Method(
        model="positions { sinusoidal {} } embedding { scale: 0 }", mixer="rope_theta: 0", angle=None,
        embedded=lambda w, x: sinusoid(w, x * math.sqrt(DIM))),
    "xpos": Method(model="positions { xpos {} }", rates=xpos_rates()),
    "xpos_of_other_rates": Method(model="positions { xpos { gamma: 0.2 scale_base: 60 } }",
                                  rates=xpos_rates(0.2, 60)),
    "xpos_blocks": Method(model="positions { xpos {} }", mixer=f"block: {TRAINED // 2}", rates=xpos_rates(),
                          visible=blocks(TRAINED // 2)),
    "rotary_blocks": Method(mixer="block: 32", visible=blocks(32)),
    "alibi": Method(model="positions { alibi {} }", angle=None, bias=alibi(2, 4, 6, 8)),
    "alibi_of_three_heads": Method(model="positions { alibi {} }", heads=3, angle=None, bias=alibi(4, 8, 2)),
    "alibi_of_other_slopes": Method(model="positions { alibi { slope_scale: 0.25 } }", angle=None,
                                    bias=alibi(4, 6, 8, 10)),
    "alibi_blocks": Method(model="positions { alibi {} }", mixer="block: 32", angle=None,
                           bias=alibi(2, 4, 6, 8), visible=blocks(32)),
    "t5": Method(model="positions { t5 {} }", angle=None, bias=t5),
    "t5_window": Method(model="positions { t5 {} }", mixer="window: 50", angle=None, bias=t5,
                        visible=window_of(50)),
    "kerple_log": Method(model="positions { kerple_log {} }", angle=None,
                         bias=kerple(lambda n, r2: (1 + r2 * n).log())),
    "kerple_power": Method(model="positions { kerple_power {} }", angle=None,
                           bias=kerple(lambda n, r2: n ** r2)),
    "interpolated": Method(model="positions { interpolated { factor: 3 } }", angle=lambda i, j: (i - j) / 3),
    "ntk_aware": Method(model="positions { ntk_aware { factor: 3 } }",
                        theta=frequencies(10000 * 3 ** (HEAD_DIM / (HEAD_DIM - 2)))),
    "yarn": Method(model=f"positions {{ yarn {{ factor: 3 length: {TRAINED} fast: 8 }} }}",
                   theta=yarn(3, TRAINED, fast=8), factor=(0.1 * math.log(3) + 1) ** 2),
    "yarn_between_pairs": Method(
        model=f"positions {{ yarn {{ factor: 3 length: {TRAINED} fast: 8 truncate: false attention_factor: 1.5 }} }}",
        theta=yarn(3, TRAINED, fast=8, truncate=False), factor=1.5 ** 2),
    "llama3": Method(model=f"positions {{ llama3 {{ factor: 3 length: {TRAINED} }} }}",
                     theta=llama3(3, TRAINED)),
    "rerope": Method(model="positions { rerope { window: 32 } }", angle=clipped(32)),
    "leaky_rerope": Method(model="positions { rerope { window: 32 leak: 16 } }", angle=leaking(32, 16)),
    "window": Method(mixer="window: 24", visible=window_of(24)),
    "window_and_sinks": Method(mixer="window: 24 sinks: 3", visible=first_and_last(3, 24)),
    "streaming_llm": Method(model="positions { streaming_llm { sinks: 4 window: 60 } }",
                            angle=streaming(4, 60), visible=first_and_last(4, 60)),
    "lm_infinite": Method(model="positions { lm_infinite { sinks: 4 window: 60 } }", angle=clipped(60),
                          visible=first_and_last(4, 60)),
    "info_scale": Method(mixer=INFO, temperature=info_scale(TRAINED)),
    "info_scale_trained": Method(mixer=INFO + ' query_scale_mode: "train" query_scale_dim: 32',
                                 temperature=info_scale(TRAINED, dim=32, least=0.0)),
    "info_scale_of_the_row": Method(mixer=INFO + ' query_scale_mode: "fixed_len"',
                                    temperature=of_length(info_scale(TRAINED, least=0.0))),
    "info_scale_window": Method(mixer='query_scale: "info" query_scale_length: 20 window: 50 sinks: 3',
                                temperature=info_scale(20), visible=first_and_last(3, 50)),
    "info_scale_leaves_biases": Method(model="positions { alibi {} }", mixer=INFO, angle=None,
                                       bias=alibi(2, 4, 6, 8), temperature=info_scale(TRAINED)),
    "info_scale_of_biases": Method(
        model="positions { alibi {} }", mixer=INFO + " query_scale_bias: true", angle=None,
        bias=alibi(2, 4, 6, 8), temperature=info_scale(TRAINED), whole_scores=True),
    "info_scale_of_learned_biases": Method(
        model="positions { t5 {} }", mixer=INFO + ' query_scale_mode: "train" query_scale_bias: true',
        angle=None, bias=t5, temperature=info_scale(TRAINED, least=0.0), whole_scores=True),
    "log_scale": Method(mixer=f'query_scale: "log" query_scale_length: {TRAINED}',
                        temperature=log_scale(TRAINED)),
    "cos_scale": Method(mixer="cos_scale: 11", cosine=11),
    "cos_and_info_scale": Method(mixer="cos_scale: 5 " + INFO, cosine=5, temperature=info_scale(TRAINED)),
    "cos_scale_xpos": Method(model="positions { xpos {} }", mixer="cos_scale: 5", cosine=5,
                             rates=xpos_rates()),
    "yarn_and_info_scale": Method(
        model=f"positions {{ yarn {{ factor: 3 length: {TRAINED} }} }}", mixer=INFO,
        theta=yarn(3, TRAINED), factor=(0.1 * math.log(3) + 1) ** 2, temperature=info_scale(TRAINED)),
}


class Positions(AuthorsTest):

    @classmethod
    def setUpClass(cls):
        cls._data_holder = tempfile.TemporaryDirectory(prefix="halflife_positions_")
        folder = pathlib.Path(cls._data_holder.name)
        for name in ("train", "validation"):
            (folder / f"{name}.txt").write_text(f"{name}: a few words that are met again. " * 10)
        cls.data = folder / "data"
        halflife("prepare", "--input", folder / "train.txt", "--validation-input", folder / "validation.txt",
                 "--tokenizer", "bytes", "--out", cls.data)

    @classmethod
    def tearDownClass(cls):
        cls._data_holder.cleanup()

    def make_run(self, method):
        """Returns a model after one training step, whose scores are a few units, and its weights."""
        recipe = self.dir / "recipe.textproto"
        recipe.write_text(RECIPE.format(
            trained=TRAINED, data=self.data, dim=DIM, layers=LAYERS, heads=method.heads,
            head_dim=HEAD_DIM, width=WIDTH, mixer=method.mixer, model=method.model))
        halflife("train", "--config", recipe, "--run", self.dir / "run")
        return self.weights_of(self.dir / "run")

    def check_method(self, method):
        weights = self.make_run(method)
        ids = sequences(LENGTHS, BYTES)
        want = [method.log_probs(weights, sequence) for sequence in ids]
        self.check_scores(self.dir / "run", ids, want)
        self.check_scores(self.dir / "run", ids, want, "--piece", 48)


def test_of(name):
    return lambda self: self.check_method(METHODS[name])


for name in METHODS:
    setattr(Positions, "test_" + name, test_of(name))

if __name__ == "__main__":
    engine.main()
