"""Plain fp64 forward pass of fla's RWKV-7, token by token. The functions correspond to those of
reference_models.py."""

import math

import torch
import torch.nn.functional as F

RANKS = {"w": ("decay_low_rank_dim", 64), "g": ("gate_low_rank_dim", 128),
         "a": ("a_low_rank_dim", 64), "v": ("v_low_rank_dim", 16)}


def width_of(config):
    inner = int(config["hidden_size"] * config.get("hidden_ratio", 4))
    return config.get("intermediate_size") or 32 * math.ceil(inner / 32)


def tensors(config):
    dim, width, vocab = config["hidden_size"], width_of(config), config["vocab_size"]
    head_dim = config.get("head_dim", 64)

    def norm(name):
        both = ("weight", "bias") if config.get("norm_bias", True) else ("weight",)
        return {f"{name}.{part}": [dim] for part in both}

    shapes = {"model.embeddings.weight": [vocab, dim]} | norm("model.norm")
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = [vocab, dim]
    if config.get("norm_first", True):
        shapes |= norm("model.layers.0.pre_norm")
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= norm(prefix + "attn_norm") | norm(prefix + "ffn_norm")
        shapes |= {f"{prefix}attn.x_{name}": [1, 1, dim] for name in "rwkvag"}
        shapes |= {f"{prefix}attn.{name}_proj.weight": [dim, dim] for name in "rkvo"}
        shapes |= {f"{prefix}attn.{name}": [dim] for name in ("k_k", "k_a", "g_norm.weight", "g_norm.bias")}
        shapes[prefix + "attn.r_k"] = [dim // head_dim, head_dim]
        for name, (key, default) in RANKS.items():
            if name == "v" and layer == 0:
                continue
            rank, lora = config.get(key, default), f"{prefix}attn.{name}_lora.lora."
            shapes |= {lora + "0.weight": [rank, dim], lora + "2.weight": [dim, rank]}
            if name != "g":
                shapes[lora + "2.bias"] = [dim]
        shapes |= {prefix + "ffn.x_k": [dim], prefix + "ffn.key.weight": [width, dim],
                   prefix + "ffn.value.weight": [dim, width]}
    return shapes


def time_mixing(config, w, h, first_values):
    """Returns the output [T, D] for h [T, D], and the values of the first layer."""
    head_dim, dim = config.get("head_dim", 64), h.shape[1]
    heads = dim // head_dim
    delta = torch.cat([torch.zeros_like(h[:1]), h[:-1]]) - h
    x = {name: h + delta * w[f"x_{name}"].flatten() for name in "rwkvag"}

    def lora(name, inner):
        low = inner(x[name] @ w[f"{name}_lora.lora.0.weight"].t())
        return low @ w[f"{name}_lora.lora.2.weight"].t() + w.get(f"{name}_lora.lora.2.bias", 0)

    r, k, v = (x[name] @ w[f"{name}_proj.weight"].t() for name in "rkv")
    decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(lora("w", torch.tanh)))
    if first_values is None:
        first_values = v
    else:
        v = v + (first_values - v) * torch.sigmoid(lora("v", lambda y: y))
    rate = torch.sigmoid(lora("a", lambda y: y))
    gate = lora("g", torch.sigmoid)
    split = lambda y: y.unflatten(-1, (heads, head_dim))
    removed = split(k * w["k_k"])
    if config.get("fuse_norm", True):
        removed = removed / torch.sqrt(removed.square().sum(-1, keepdim=True) + 1e-6)
    else:
        removed = F.normalize(removed, dim=-1)
    k = split(k * (1 + (rate - 1) * w["k_a"]))
    r, v, decay, rate = split(r), split(v), split(decay), split(rate)
    state, rows = torch.zeros(heads, head_dim, head_dim, dtype=h.dtype), []
    for t in range(h.shape[0]):
        old = torch.einsum("hk,hkv->hv", removed[t], state)
        state = (decay[t][..., None] * state - (removed[t] * rate[t])[..., None] * old[:, None]
                 + k[t][..., None] * v[t][:, None])
        rows.append(torch.einsum("hk,hkv->hv", r[t], state))
    o = F.group_norm(torch.stack(rows).flatten(1), heads, w["g_norm.weight"], w["g_norm.bias"],
                     head_dim * config.get("norm_eps", 1e-5))
    o = o + ((r * k * w["r_k"]).sum(-1, keepdim=True) * v).flatten(1)
    return (o * gate) @ w["o_proj.weight"].t(), first_values


def channel_mixing(w, h):
    previous = torch.cat([torch.zeros_like(h[:1]), h[:-1]])
    k = (h + (previous - h) * w["x_k"]) @ w["key.weight"].t()
    return F.relu(k).square() @ w["value.weight"].t()


def log_probs(config, weights, ids):
    w = {name: tensor.double() for name, tensor in weights.items()}
    below = lambda prefix: {n[len(prefix):]: t for n, t in w.items() if n.startswith(prefix)}

    def norm(name, x):
        own = below(name + ".")
        return F.layer_norm(x, x.shape[-1:], own["weight"], own.get("bias"), config.get("norm_eps", 1e-5))

    x, first_values = w["model.embeddings.weight"][torch.tensor(ids)], None
    if config.get("norm_first", True):
        x = norm("model.layers.0.pre_norm", x)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        y, first_values = time_mixing(config, below(prefix + "attn."), norm(prefix + "attn_norm", x),
                                      first_values)
        x = x + y
        x = x + channel_mixing(below(prefix + "ffn."), norm(prefix + "ffn_norm", x))
    head = w["model.embeddings.weight" if config.get("tie_word_embeddings") else "lm_head.weight"]
    logits = norm("model.norm", x) @ head.t()
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]
