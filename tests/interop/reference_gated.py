"""Plain fp64 forward passes of fla's HGRN2 and GSA layers, token by token. reference_models.py uses them.

`NAME_tensors(config)` lists the tensors of a layer with their shapes; `NAME(config, w, x)` maps
x [T, D] to [T, D].
"""

import torch
import torch.nn.functional as F

from reference_delta import convolve, rms_norm

NORM_EPS = 1e-5  # for the output norms of the layers, which ignore norm_eps


def hgrn2_heads(config):
    ratio = config.get("expand_ratio", 128)
    return config["num_heads"] if ratio is None else config["hidden_size"] // ratio


def hgrn2_tensors(config):
    dim = config["hidden_size"]
    shapes = {f"{n}_proj.weight": [dim, dim] for n in "qfio"}
    if config.get("use_short_conv", False):
        shapes |= {f"{n}_conv1d.weight": [dim, 1, config.get("conv_size", 4)] for n in "qfi"}
    if config.get("elementwise_affine", True):
        shapes["g_norm.weight"] = [dim]
    return shapes


def lower_bounds(config, w):
    """Returns the lower bound [D] of each layer. None: no bound."""
    layers = config["num_hidden_layers"]
    if "model.lower_bounds" not in w:
        return [None] * layers
    shares = w["model.lower_bounds"].softmax(0)
    return [None] + [shares[1:i + 1].sum(0) for i in range(1, layers)]


def hgrn2(config, w, x, lower_bound):
    heads = hgrn2_heads(config)
    q, f, v = (x @ w[f"{n}_proj.weight"].t() for n in "qfi")
    if config.get("use_short_conv", False):
        q, f, v = (convolve(y, w[f"{n}_conv1d.weight"]) for n, y in zip("qfi", (q, f, v)))
    alpha = torch.sigmoid(f)
    if lower_bound is not None:
        alpha = lower_bound + (1 - lower_bound) * alpha
    q, alpha, v = (y.unflatten(-1, (heads, -1)) for y in (F.silu(q), alpha, v))
    state = torch.zeros(heads, q.shape[2], v.shape[2], dtype=x.dtype)
    rows = []
    for t in range(x.shape[0]):
        state = alpha[t][..., None] * state + (1 - alpha[t])[..., None] * v[t][:, None]
        rows.append(torch.einsum("hk,hkv->hv", q[t] * q.shape[2] ** -0.5, state))
    o = rms_norm(torch.stack(rows).flatten(1), w.get("g_norm.weight", 1), NORM_EPS)
    return o @ w["o_proj.weight"].t()


def gsa_sizes(config):
    dim, heads = config["hidden_size"], config.get("num_heads", 4)
    return (heads, config.get("num_kv_heads") or heads, int(dim * config.get("expand_k", 1)),
            config.get("num_slots", 64))


def gsa_tensors(config):
    dim, (heads, kv_heads, keys, slots) = config["hidden_size"], gsa_sizes(config)
    group = heads // kv_heads
    shapes = {"q_proj.weight": [keys, dim], "k_proj.weight": [keys // group, dim],
              "v_proj.weight": [dim // group, dim], "f_proj.weight": [kv_heads * slots, dim],
              "o_proj.weight": [dim, dim]}
    if config.get("use_short_conv", False):
        taps = config.get("conv_size", 4)
        shapes |= {f"{n}_conv1d.weight": [shapes[f"{n}_proj.weight"][0], 1, taps] for n in "qkv"}
    if config.get("feature_map", "swish") == "t2r":
        shapes["feature_map.layer.weight"] = [keys // heads, keys // heads]
    if config.get("elementwise_affine", True):
        shapes["g_norm.weight"] = [dim]
    return shapes


def gsa(config, w, x):
    heads, kv_heads, _, _ = gsa_sizes(config)
    q, k, v = (x @ w[f"{n}_proj.weight"].t() for n in "qkv")
    if config.get("use_short_conv", False):
        q, k, v = (F.silu(convolve(y, w[f"{n}_conv1d.weight"])) for n, y in zip("qkv", (q, k, v)))
    f = F.logsigmoid(x @ w["f_proj.weight"].t()) / config.get("gate_logit_normalizer", 8)
    q, k = q.unflatten(-1, (heads, -1)), k.unflatten(-1, (kv_heads, -1))
    name = config.get("feature_map", "swish")
    def features(y):
        if name == "t2r":
            return F.relu(y @ w["feature_map.layer.weight"].t())
        return F.relu(y) if name == "relu" else F.silu(y)
    q, k = features(q), features(k)
    v, f = F.silu(v).unflatten(-1, (kv_heads, -1)), f.unflatten(-1, (kv_heads, -1))
    k, v, f = (y.repeat_interleave(heads // kv_heads, dim=1) for y in (k, v, f))
    alpha = f.exp()
    slot_keys = torch.zeros(heads, f.shape[2], k.shape[2], dtype=x.dtype)
    slot_values = torch.zeros(heads, f.shape[2], v.shape[2], dtype=x.dtype)
    rows = []
    for t in range(x.shape[0]):
        a, s = alpha[t][..., None], (1 - alpha[t])[..., None]
        slot_keys = a * slot_keys + s * k[t][:, None]
        slot_values = a * slot_values + s * v[t][:, None]
        weights = torch.einsum("hk,hmk->hm", q[t], slot_keys).softmax(-1)
        rows.append(torch.einsum("hm,hmv->hv", weights, slot_values))
    o = rms_norm(F.silu(torch.stack(rows)).flatten(1), w.get("g_norm.weight", 1), NORM_EPS)
    return o @ w["o_proj.weight"].t()
