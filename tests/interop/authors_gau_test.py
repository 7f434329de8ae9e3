#!/usr/bin/env python3
"""Tests halflife import --layout gau_alpha with encoders that have their authors' tensor names. Their scores,
with one token masked at a time, must equal a forward in fp64, which rotates pairs of neighbouring channels.

    .venv-compare/bin/python tests/interop/authors_gau_test.py build/cpu/tests/engine_server
"""

import math

import engine
from authors_fixture import DIM, LAYERS, VOCAB, AuthorsTest, linear, random_weights
from engine import halflife
import torch

WIDTH, KEY_DIM, MASK = 40, 12, 3
LENGTHS = (2, 29, 65)


def shapes_of(bias):
    shapes = {"gau_alpha.embeddings.word_embeddings.weight": [VOCAB, DIM],
              "gau_alpha.embeddings.token_type_embeddings.weight": [2, DIM]}
    for layer in range(LAYERS):
        prefix = f"gau_alpha.encoder.layer.{layer}.gau."
        shapes |= {prefix + "i_dense.weight": [2 * WIDTH + KEY_DIM, DIM],
                   prefix + "o_dense.weight": [DIM, WIDTH],
                   prefix + "q_scaleoffset.weight": [KEY_DIM], prefix + "k_scaleoffset.weight": [KEY_DIM]}
        if bias:
            shapes |= {prefix + "i_dense.bias": [2 * WIDTH + KEY_DIM], prefix + "o_dense.bias": [DIM],
                       prefix + "q_scaleoffset.bias": [KEY_DIM], prefix + "k_scaleoffset.bias": [KEY_DIM]}
    return shapes


def config_of(**more):
    return {"model_type": "gau_alpha", "architectures": ["GAUAlphaForMaskedLM"], "vocab_size": VOCAB,
            "hidden_size": DIM, "embedding_size": DIM, "intermediate_size": WIDTH,
            "attention_key_size": KEY_DIM, "num_hidden_layers": LAYERS, "hidden_act": "swish",
            "normalization": "softmax_plus", "attention_scale": True, "use_bias": False,
            "type_vocab_size": 2, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
            "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "classifier_dropout": 0.1,
            "gradient_checkpointing": False, "initializer_range": 0.02, "mask_token_id": MASK} | more


def rms_norm(x):
    return x * (x.square().mean(-1, keepdim=True) + 1e-12).rsqrt()


def rotated(x):
    place = torch.arange(x.shape[0], dtype=x.dtype)
    angle = place[:, None] * 10000.0 ** (-torch.arange(0, KEY_DIM, 2, dtype=x.dtype) / KEY_DIM)
    even, odd = x[:, 0::2], x[:, 1::2]
    return torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()],
                       -1).flatten(1)


def unit(w, prefix, x, normalization):
    u, v, z = torch.nn.functional.silu(linear(x, w, prefix + "i_dense")).split([WIDTH, WIDTH, KEY_DIM], -1)
    q, k = (z * w[prefix + f"{name}_scaleoffset.weight"] + w.get(prefix + f"{name}_scaleoffset.bias", 0)
            for name in "qk")
    scores, count = rotated(q) @ rotated(k).T / math.sqrt(KEY_DIM), x.shape[0]
    if normalization == "squared_relu":
        weights = scores.relu() ** 2 / count
    else:
        factor = math.log(count) / math.log(512) if normalization == "softmax_plus" else 1
        weights = (scores * factor).softmax(-1)
    return linear(u * (weights @ v), w, prefix + "o_dense")


def hidden_log_probs(w, ids, normalization):
    """Returns the score of every token except the first, with this token masked and all others visible."""
    table = w["gau_alpha.embeddings.word_embeddings.weight"]
    values = []
    for place in range(1, len(ids)):
        seen = torch.tensor(ids[:place] + [MASK] + ids[place + 1:])
        x = rms_norm(table[seen] + w["gau_alpha.embeddings.token_type_embeddings.weight"][0])
        for layer in range(LAYERS):
            x = rms_norm(x + unit(w, f"gau_alpha.encoder.layer.{layer}.gau.", x, normalization))
        values.append((x[place] @ table.T).log_softmax(-1)[ids[place]])
    return torch.stack(values)


class GauAlpha(AuthorsTest):

    def check_form(self, normalization, bias=False, copy=False):
        weights = random_weights(shapes_of(bias))
        if copy:
            weights["cls.predictions.decoder.weight"] = \
                weights["gau_alpha.embeddings.word_embeddings.weight"].clone()
        config = config_of(normalization=normalization, use_bias=bias)
        self.check(weights, config, "gau_alpha",
                   lambda w, ids: hidden_log_probs(w, ids, normalization), LENGTHS)

    def test_softmax_plus(self):
        self.check_form("softmax_plus", copy=True)

    def test_softmax_with_biases(self):
        self.check_form("softmax", bias=True)

    def test_squared_relu(self):
        self.check_form("squared_relu")

    def test_unsupported_options_are_refused(self):
        weights = random_weights(shapes_of(bias=False))
        output = self.import_folder(weights, config_of(normalization="relu", embedding_size=8), "gau_alpha",
                                    code=3)
        self.assertIn("normalization is 'relu'. Only these values are supported: softmax, softmax_plus, squared_relu.",
                      output)
        self.assertIn("embedding_size is 8", output)

    def test_generate_refuses_an_encoder(self):
        self.import_folder(random_weights(shapes_of(bias=False)), config_of(), "gau_alpha")
        output = halflife("generate", "--model", self.dir / "run", "--prompt", "a", code=2)
        self.assertIn("masked_token", output)


if __name__ == "__main__":
    engine.main()
