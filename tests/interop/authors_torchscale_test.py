#!/usr/bin/env python3
"""Tests halflife import --layout torchscale_decoder and torchscale_retnet. The scores of checkpoints with the
names of torchscale's classes must equal a forward in fp64, which rotates pairs of neighbouring channels.
Retention is tested in its parallel and its recurrent form.

    .venv-compare/bin/python tests/interop/authors_torchscale_test.py build/cpu/tests/engine_server
"""

import math

import engine
from authors_fixture import (DIM, HEADS, LAYERS, POSITIONS, VOCAB, WIDTH, AuthorsTest, layer_norm, linear,
                             next_token_log_probs, random_weights)
import torch
import torch.nn.functional as F

HEAD_DIM = DIM // HEADS
VALUES = 56  # total width of the values in RetNet
RETNET_HEADS = 2
PAD = 1  # fairseq's positions begin after this id
BUCKETS, LONGEST = 32, 128
# The first distances of the 16 buckets of earlier tokens.
T5_BEGINS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)
ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "swish": F.silu}

DECODER = {"vocab_size": VOCAB, "decoder_embed_dim": DIM, "decoder_attention_heads": HEADS,
           "decoder_ffn_embed_dim": WIDTH, "decoder_layers": LAYERS, "decoder_normalize_before": True,
           "activation_fn": "gelu", "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0,
           "drop_path_rate": 0.0, "no_scale_embedding": True, "layernorm_embedding": False,
           "moe_freq": 0, "moe_expert_count": 0, "rel_pos_buckets": 0, "max_rel_pos": 0,
           "deepnorm": False, "subln": True, "bert_init": False, "multiway": False,
           "share_decoder_input_output_embed": False, "max_target_positions": POSITIONS,
           "no_output_layer": False, "layernorm_eps": 1e-5, "checkpoint_activations": False,
           "fsdp": False, "ddp_rank": 0, "xpos_rel_pos": False, "xpos_scale_base": 512,
           "flash_attention": False, "segment_length": None, "dilated_ratio": None,
           "no_token_positional_embeddings": True, "decoder_learned_pos": False}
RETNET = {key: value for key, value in DECODER.items()
          if key not in ("decoder_attention_heads", "attention_dropout")} | {
              "decoder_value_embed_dim": VALUES, "decoder_retention_heads": RETNET_HEADS,
              "activation_fn": "swish", "layernorm_eps": 1e-6, "chunkwise_recurrent": False,
              "recurrent_chunk_size": 512}


# Options that the LeX authors' fork adds to the class.
FORK = {"block_size": -1, "mode": "default", "s4": False, "ffn_s4": False, "global_token": False}
# Additional options of the fairseq examples, with the examples' defaults.
FAIRSEQ = {"_name": "lm", "relu_dropout": 0.0, "decoder_output_dim": DIM, "decoder_input_dim": DIM,
           "offload_activations": False, "min_params_to_wrap": 100000000, "moe_expert_ffn_dim": None,
           "moe_normalize_expert_grad": "world_size", "record_a2a_perf_stats": False, "dummy_a2a": False,
           "moe_batch_prioritized_routing": False, "add_bos_token": False, "tokens_per_sample": 1024,
           "tpu": False, "memory_efficient_fp16": False, "fp16": True, "fp16_no_flatten_grads": False,
           "ddp_backend": "legacy_ddp", "world_size": 16, "distributed_rank": 0, "base_layers": 0,
           "adaptive_softmax_cutoff": None, "adaptive_softmax_dropout": 0.0, "adaptive_softmax_factor": 4.0,
           "decoder_layerdrop": 0, "decoder_layers_to_keep": None, "base_sublayers": 1,
           "base_shuffle": False, "character_embeddings": False, "no_decoder_final_norm": False,
           "adaptive_input": False, "adaptive_input_factor": 4, "adaptive_input_cutoff": None,
           "tie_adaptive_weights": False, "tie_adaptive_proj": False}


def biased(name, out, inner):
    return {name + ".weight": [out, inner], name + ".bias": [out]}


def norm(name, width=DIM):
    return {name + ".weight": [width], name + ".bias": [width]}


def frame_shapes(config):
    shapes = {"embed_tokens.weight": [VOCAB, DIM]}
    if not config["share_decoder_input_output_embed"]:
        shapes["output_projection.weight"] = [VOCAB, DIM]
    return shapes


def decoder_shapes(config):
    shapes = frame_shapes(config)
    subln = config["subln"] and not config["deepnorm"]
    if config["decoder_normalize_before"]:
        shapes |= norm("layer_norm")
    if config["layernorm_embedding"]:
        shapes |= norm("layernorm_embedding")
    if config["decoder_learned_pos"]:
        shapes["embed_positions.weight"] = [POSITIONS + PAD + 1, DIM]
    if config["rel_pos_buckets"]:
        shapes["self_attn_relative_position.relative_attention_bias.weight"] = [BUCKETS, HEADS]
    for layer in range(LAYERS):
        prefix = f"layers.{layer}."
        shapes |= norm(prefix + "self_attn_layer_norm") | norm(prefix + "final_layer_norm")
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= biased(f"{prefix}self_attn.{name}", DIM, DIM)
        shapes |= biased(prefix + "ffn.fc1", WIDTH, DIM) | biased(prefix + "ffn.fc2", DIM, WIDTH)
        if subln:
            shapes |= norm(prefix + "self_attn.inner_attn_ln") | norm(prefix + "ffn.ffn_layernorm", WIDTH)
    return shapes


def retnet_shapes(config):
    shapes = frame_shapes(config)
    if config["decoder_normalize_before"]:
        shapes["layer_norm.weight"] = [DIM]
    if config["layernorm_embedding"]:
        shapes["layernorm_embedding.weight"] = [DIM]
    for layer in range(LAYERS):
        prefix = f"layers.{layer}."
        shapes |= {prefix + "retention_layer_norm.weight": [DIM], prefix + "final_layer_norm.weight": [DIM],
                   prefix + "retention.q_proj.weight": [DIM, DIM],
                   prefix + "retention.k_proj.weight": [DIM, DIM],
                   prefix + "retention.v_proj.weight": [VALUES, DIM],
                   prefix + "retention.g_proj.weight": [VALUES, DIM],
                   prefix + "retention.out_proj.weight": [DIM, VALUES],
                   prefix + "ffn.fc1.weight": [WIDTH, DIM], prefix + "ffn.gate.weight": [WIDTH, DIM],
                   prefix + "ffn.fc2.weight": [DIM, WIDTH]}
    return shapes


def rms_norm(x, weight, eps=1e-6):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotated(x, angles, scale=1.0):
    """Rotates x [T, H, d]: channels 2i and 2i + 1 by angles[:, i], where angles is [T, d/2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = (angles.cos() * scale)[:, None], (angles.sin() * scale)[:, None]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def xpos_scale(dtype=torch.float32):
    """Returns the buffer of the class: the factor by which each pair of channels decreases over scale_base
    tokens."""
    return (torch.arange(0, HEAD_DIM, 2, dtype=dtype) + 0.4 * HEAD_DIM) / (1.4 * HEAD_DIM)


def xpos(x, places, centre, exponent):
    """Applies xPos. Queries use the exponent 1 / scale_base and decrease with their positions. Keys use the
    negative exponent and increase."""
    pair = torch.arange(0, HEAD_DIM, 2, dtype=x.dtype)
    angles = places[:, None] * 10000.0 ** (-pair / HEAD_DIM)
    return rotated(x, angles, xpos_scale(x.dtype) ** ((places[:, None] - centre) * exponent))


def sinusoidal_table(length, like):
    """Returns fairseq's table: all sines, then all cosines. The first token has the position PAD + 1."""
    place = torch.arange(PAD + 1, PAD + 1 + length, dtype=like.dtype)[:, None]
    angles = place * torch.exp(torch.arange(DIM // 2, dtype=like.dtype) * -math.log(10000) / (DIM // 2 - 1))
    return torch.cat([angles.sin(), angles.cos()], -1)


def attend(w, config, q, k, v, centre):
    """Attention of the last len(q) of len(k) tokens. The first key has position 0. xPos scales are relative
    to `centre`."""
    places = torch.arange(len(k), dtype=k.dtype)
    query_places = places[len(k) - len(q):]
    if config["xpos_rel_pos"]:
        exponent = 1 / config["xpos_scale_base"]
        q, k = xpos(q, query_places, centre, exponent), xpos(k, places, centre, -exponent)
    scores = torch.einsum("ihd,jhd->hij", q, k) * HEAD_DIM ** -0.5
    distance = query_places[:, None] - places
    if config["rel_pos_buckets"]:
        bucket = (distance.clamp(min=0)[..., None] >= torch.tensor(T5_BEGINS)).sum(-1) - 1
        table = w["self_attn_relative_position.relative_attention_bias.weight"]
        scores = scores + table[bucket].permute(2, 0, 1)
    p = scores.masked_fill(distance < 0, -math.inf).softmax(-1)
    return torch.einsum("hij,jhd->ihd", p, v)


def attend_in_blocks(w, config, q, k, v):
    """Attention of the LeX authors' fork on rows longer than block_size. A row is split into tiles of half a
    block. Each tile sees itself and the previous tile, and the first token of this pair has position 0."""
    half = config["block_size"] // 2
    return torch.cat([attend(w, config, q[begin:begin + half], k[max(0, begin - half):begin + half],
                             v[max(0, begin - half):begin + half], half)
                      for begin in range(0, len(q), half)])


def attention(w, config, prefix, x):
    q, k, v = (linear(x, w, f"{prefix}{name}_proj").unflatten(1, (HEADS, HEAD_DIM)) for name in "qkv")
    if 0 < config.get("block_size", -1) < len(x):
        y = attend_in_blocks(w, config, q, k, v).flatten(1)
    else:
        y = attend(w, config, q, k, v, len(x) // 2).flatten(1)
    if prefix + "inner_attn_ln.weight" in w:
        y = layer_norm(y, w, prefix + "inner_attn_ln")
    return linear(y, w, prefix + "out_proj")


def mlp(w, config, prefix, x):
    inner = ACTIVATIONS[config["activation_fn"]](linear(x, w, prefix + "fc1"))
    if prefix + "ffn_layernorm.weight" in w:
        inner = layer_norm(inner, w, prefix + "ffn_layernorm")
    return linear(inner, w, prefix + "fc2")


def embedded(w, config, ids):
    x = w["embed_tokens.weight"][torch.tensor(ids)]
    return x if config["no_scale_embedding"] else x * math.sqrt(DIM)


def head_of(w, config):
    shared = config["share_decoder_input_output_embed"]
    return w["embed_tokens.weight" if shared else "output_projection.weight"]


def apply_branches(config, x, branches, of):
    """Applies branches, each given as (name of its norm, function), to x. `of(x, name)` applies a norm."""
    alpha = (2.0 * LAYERS) ** 0.25 if config["deepnorm"] else 1.0
    before = config["decoder_normalize_before"]
    for name, branch in branches:
        x = alpha * x + branch(of(x, name)) if before else of(alpha * x + branch(x), name)
    return of(x, "layer_norm") if before else x


def decoder_log_probs(config):
    def log_probs(w, ids):
        x = embedded(w, config, ids)
        if config["decoder_learned_pos"]:
            x = x + w["embed_positions.weight"][PAD + 1:][:len(ids)]
        elif not config["no_token_positional_embeddings"]:
            x = x + sinusoidal_table(len(ids), x)
        if config["layernorm_embedding"]:
            x = layer_norm(x, w, "layernorm_embedding")
        branches = []
        for layer in range(LAYERS):
            prefix = f"layers.{layer}."
            branches += [
                (prefix + "self_attn_layer_norm",
                 lambda h, prefix=prefix: attention(w, config, prefix + "self_attn.", h)),
                (prefix + "final_layer_norm", lambda h, prefix=prefix: mlp(w, config, prefix + "ffn.", h))]
        x = apply_branches(config, x, branches, lambda h, name: layer_norm(h, w, name))
        return next_token_log_probs(F.linear(x, head_of(w, config)), ids)
    return log_probs


def decays(like):
    return torch.log1p(-2.0 ** (-5 - torch.arange(RETNET_HEADS, dtype=like.dtype)))


def in_parallel(q, k, v):
    """Returns [T, H, V] from q, k and v [T, H, *]. Rows of decays are divided by the square roots of their
    sums, and rows of scores by the sums of their absolute values, which are clamped to 1 to 5e4."""
    place = torch.arange(len(q), dtype=q.dtype)
    distance = place[:, None] - place
    rows = (decays(q)[:, None, None] * distance.clamp(min=0)).exp() * (distance >= 0)
    rows = rows / rows.sum(-1, keepdim=True).sqrt()
    scores = torch.einsum("ihd,jhd->hij", q, k) * rows
    scores = scores / scores.abs().sum(-1, keepdim=True).clamp(1, 5e4)
    return torch.einsum("hij,jhv->ihv", scores, v)


def token_by_token(q, k, v):
    decay, outputs = decays(q).exp(), []
    state, scale = torch.zeros(*k.shape[1:], v.shape[-1], dtype=q.dtype), torch.zeros_like(decay)
    for query, key, value in zip(q, k, v):
        before, scale = scale, scale * decay + 1
        kept, new = (x[:, None, None] for x in (before.sqrt() * decay / scale.sqrt(), 1 / scale.sqrt()))
        state = state * kept + torch.einsum("hd,hv->hdv", key, value) * new
        outputs.append(torch.einsum("hd,hdv->hv", query, state))
    return torch.stack(outputs)


def retention(w, prefix, x, form):
    q, k, v = (linear(x, w, f"{prefix}{name}_proj").unflatten(1, (RETNET_HEADS, -1)) for name in "qkv")
    key_dim = DIM // RETNET_HEADS
    place = torch.arange(len(x), dtype=x.dtype)[:, None]
    angles = place * 10000.0 ** -torch.linspace(0, 1, key_dim // 2, dtype=x.dtype)
    o = form(rotated(q, angles), rotated(k * key_dim ** -0.5, angles), v)
    o = rms_norm(o, 1.0).flatten(1)
    return linear(F.silu(linear(x, w, prefix + "g_proj")) * o, w, prefix + "out_proj")


def retnet_log_probs(config, form):
    def glu(w, prefix, x):
        inner = ACTIVATIONS[config["activation_fn"]](linear(x, w, prefix + "fc1"))
        return linear(inner * linear(x, w, prefix + "gate"), w, prefix + "fc2")

    def log_probs(w, ids):
        x = embedded(w, config, ids)
        if config["layernorm_embedding"]:
            x = rms_norm(x, w["layernorm_embedding.weight"])
        branches = []
        for layer in range(LAYERS):
            prefix = f"layers.{layer}."
            branches += [(prefix + "retention_layer_norm",
                          lambda h, prefix=prefix: retention(w, prefix + "retention.", h, form)),
                         (prefix + "final_layer_norm",
                          lambda h, prefix=prefix: glu(w, prefix + "ffn.", h))]
        x = apply_branches(config, x, branches, lambda h, name: rms_norm(h, w[name + ".weight"]))
        return next_token_log_probs(F.linear(x, head_of(w, config)), ids)
    return log_probs


def without_prefix(log_probs):
    """Returns the same function for weights with the names of a fairseq model."""
    return lambda w, ids: log_probs({name.removeprefix("decoder."): w[name] for name in w}, ids)


def small_values(weights, factor):
    """Returns weights with which outputs of heads are so small that the eps of their norm matters."""
    return {name: tensor * factor if ".retention.v_proj." in name else tensor
            for name, tensor in weights.items()}


class Decoder(AuthorsTest):

    def check_form(self, **change):
        config = DECODER | change
        self.check(random_weights(decoder_shapes(config)), config, "torchscale_decoder",
                   decoder_log_probs(config))

    def test_xpos_and_sub_ln(self):
        self.check_form(xpos_rel_pos=True)

    def test_xpos_of_another_base_and_pre_norm(self):
        self.check_form(xpos_rel_pos=True, xpos_scale_base=100, subln=False, activation_fn="relu",
                        share_decoder_input_output_embed=True)

    def test_t5_biases(self):
        self.check_form(rel_pos_buckets=BUCKETS, max_rel_pos=LONGEST)

    def test_scaled_embeddings_with_learned_positions_and_a_norm(self):
        self.check_form(no_token_positional_embeddings=False, decoder_learned_pos=True,
                        no_scale_embedding=False, layernorm_embedding=True)

    def test_sinusoidal_positions_of_fairseq(self):
        self.check_form(no_token_positional_embeddings=False, no_scale_embedding=False)

    def test_post_norm(self):
        self.check_form(decoder_normalize_before=False, subln=False)

    def test_deep_norm(self):
        self.check_form(decoder_normalize_before=False, deepnorm=True, xpos_rel_pos=True)

    def test_prefixed_with_buffers_and_a_shared_head(self):
        config = DECODER | {"xpos_rel_pos": True, "share_decoder_input_output_embed": True}
        weights = {"decoder." + name: tensor
                   for name, tensor in random_weights(decoder_shapes(config)).items()}
        weights["decoder.output_projection.weight"] = weights["decoder.embed_tokens.weight"].clone()
        for layer in range(LAYERS):
            weights[f"decoder.layers.{layer}.self_attn.xpos.scale"] = xpos_scale()
        self.check(weights, config, "torchscale_decoder", without_prefix(decoder_log_probs(config)))

    def test_blocks_of_the_fork(self):
        """One row has exactly the length of a block. The lengths of longer rows are not multiples of half a
        block."""
        for change in ({"xpos_rel_pos": True}, {"rel_pos_buckets": BUCKETS, "max_rel_pos": LONGEST},
                       {"no_token_positional_embeddings": False}):
            with self.subTest(change):
                config = DECODER | FORK | {"block_size": 64} | change
                weights = random_weights(decoder_shapes(config))
                if config["xpos_rel_pos"]:
                    weights["self_attn_xpos.scale"] = xpos_scale()
                self.check(weights, config, "torchscale_decoder", decoder_log_probs(config))
                self.assertIn("block: 32", (self.dir / "run" / "config.textproto").read_text())

    def test_the_fork_without_blocks(self):
        config = DECODER | FORK | {"block_size": -1, "xpos_rel_pos": True}
        weights = random_weights(decoder_shapes(config)) | {"self_attn_xpos.scale": xpos_scale().half()}
        output = self.import_folder(weights, config, "torchscale_decoder")
        self.assertNotIn("warn", output)
        self.assertIn("block: 0", (self.dir / "run" / "config.textproto").read_text())

    def test_an_xpos_scale_that_contradicts_the_config_is_refused(self):
        for config, scale, part in (
                (DECODER | {"xpos_rel_pos": True}, xpos_scale() - 0.03,
                 "self_attn_xpos.scale: element 0 is 0.2557"),
                (DECODER | {"xpos_rel_pos": True}, torch.rand(3),
                 "self_attn_xpos.scale: the file has 3 elements, its config.json implies 4"),
                (DECODER, xpos_scale(), "unexpected: self_attn_xpos.scale [4]")):
            with self.fresh(part):
                weights = random_weights(decoder_shapes(config)) | {"self_attn_xpos.scale": scale}
                self.assertIn(part, self.import_folder(weights, config, "torchscale_decoder", code=3))
                self.assertFalse((self.dir / "run").exists())

    def test_keys_of_the_examples_cause_no_warning(self):
        weights = random_weights(decoder_shapes(DECODER))
        output = self.import_folder(weights, DECODER | FAIRSEQ, "torchscale_decoder")
        self.assertNotIn("warn", output)
        self.tearDown()
        self.setUp()
        changed = DECODER | FAIRSEQ | {"add_bos_token": True, "base_layers": 2, "rotary": None}
        output = self.import_folder(weights, changed, "torchscale_decoder")
        self.assertIn("ignoring unknown keys: add_bos_token, base_layers, rotary", output)

    def test_tensors_that_do_not_fit_are_listed(self):
        weights = random_weights(decoder_shapes(DECODER))
        weights["layers.1.surplus"] = weights.pop("layers.1.ffn.fc1.bias")
        weights["layer_norm.bias"] = weights["layer_norm.bias"][1:].clone()
        output = self.import_folder(weights, DECODER, "torchscale_decoder", code=3)
        for part in ("missing: layers.1.ffn.fc1.bias [48]", "unexpected: layers.1.surplus [48]",
                     "layer_norm.bias: file [31], model [32]"):
            self.assertIn(part, output)
        self.assertFalse((self.dir / "run").exists())

    def test_unsupported_options_are_refused(self):
        for change, part in (
                ({"deepnorm": True}, "deepnorm and decoder_normalize_before are both true"),
                ({"decoder_normalize_before": False}, "subln is true and decoder_normalize_before is false"),
                ({"moe_freq": 2}, "moe_freq is 2. Only 0 (no experts) is supported."),
                ({"multiway": True}, "multiway is true. Only false is supported."),
                ({"no_token_positional_embeddings": None}, "no_token_positional_embeddings is missing"),
                ({"xpos_rel_pos": True, "no_token_positional_embeddings": False}, "more than one of"),
                ({"rel_pos_buckets": 30, "max_rel_pos": 128}, "rel_pos_buckets is 30. Only multiples of 4"),
                ({"segment_length": "[2048]"}, "segment_length is set, which is for dilated attention"),
                ({"block_size": 65}, "block_size is 65. Use an even number"),
                ({"expo_rel_pos": True}, "expo_rel_pos is true"),
                ({"mode": "state"}, "mode is 'state'. Only 'default' is read."),
                ({"activation_fn": "quick_gelu"}, "activation_fn is 'quick_gelu'"),
                ({"vocab_size": None}, "vocab_size is missing")):
            with self.fresh(part):
                config = DECODER | change
                weights = random_weights(decoder_shapes(DECODER))
                self.assertIn(part, self.import_folder(weights, config, "torchscale_decoder", code=3))


class RetNet(AuthorsTest):

    def check_form(self, form=in_parallel, factor=1.0, **change):
        config = RETNET | change
        weights = small_values(random_weights(retnet_shapes(config)), factor)
        self.check(weights, config, "torchscale_retnet", retnet_log_probs(config, form))

    def test_parallel(self):
        self.check_form()

    def test_parallel_with_small_outputs(self):
        self.check_form(factor=2e-3)

    def test_token_by_token(self):
        self.check_form(token_by_token, row_norm="decay")

    def test_token_by_token_with_small_outputs(self):
        self.check_form(token_by_token, factor=2e-3, row_norm="decay")

    def test_other_parts(self):
        self.check_form(activation_fn="gelu", no_scale_embedding=False, layernorm_embedding=True,
                        share_decoder_input_output_embed=True)

    def test_deep_norm(self):
        self.check_form(decoder_normalize_before=False, deepnorm=True)

    def test_keys_of_the_examples_cause_no_warning(self):
        output = self.import_folder(random_weights(retnet_shapes(RETNET)), RETNET | FAIRSEQ,
                                  "torchscale_retnet")
        self.assertNotIn("warn", output)

    def test_buffers_are_left_out(self):
        weights = {"decoder." + name: tensor
                   for name, tensor in random_weights(retnet_shapes(RETNET)).items()}
        weights["decoder.retnet_rel_pos.angle"] = torch.rand(DIM // RETNET_HEADS)
        weights["decoder.retnet_rel_pos.decay"] = torch.rand(RETNET_HEADS)
        self.check(weights, RETNET, "torchscale_retnet",
                   without_prefix(retnet_log_probs(RETNET, in_parallel)))

    def test_tensors_that_do_not_fit_are_listed(self):
        weights = random_weights(retnet_shapes(RETNET))
        weights["layers.0.retention.group_norm.weight"] = torch.rand(VALUES // RETNET_HEADS)
        output = self.import_folder(weights, RETNET | {"decoder_layers": 3}, "torchscale_retnet", code=3)
        for part in ("missing: layers.2.retention.v_proj.weight [56, 32]",
                     "unexpected: layers.0.retention.group_norm.weight [28]"):
            self.assertIn(part, output)
        self.tearDown()
        self.setUp()
        output = self.import_folder(weights, RETNET | {"row_norm": "rows", "deepnorm": True},
                                  "torchscale_retnet", code=3)
        self.assertIn("row_norm is 'rows'. Use one of torchscale_parallel, decay, none.", output)
        self.assertIn("deepnorm and decoder_normalize_before are both true", output)


if __name__ == "__main__":
    engine.main()
