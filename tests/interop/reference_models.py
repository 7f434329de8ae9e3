"""Plain fp64 forward passes of the public classes. The tests compare imported models with them.

`tensors(config)` lists every tensor of a folder with its shape. `log_probs(config, weights, ids)` returns
ln p(ids[i+1] | ids[..i]). Everything is computed token by token, without chunks or fused operations. The
sources are the papers and the public description of each class.
"""

import functools
import math

import torch
import torch.nn.functional as F

import reference_delta
import reference_gated

ACTIVATIONS = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
# fla's table for the feature map of gla, in which gelu means the tanh approximation.
FLA_ACTIVATIONS = {
    "relu": F.relu,
    "sqrelu": ACTIVATIONS["relu2"],
    "silu": F.silu,
    "swish": F.silu,
    "sigmoid": torch.sigmoid,
    "gelu": ACTIVATIONS["gelu_pytorch_tanh"],
}


def mlp_width(config, ratio):
    if config.get("intermediate_size"):
        return config["intermediate_size"]
    width = int(config["hidden_size"] * config.get("hidden_ratio", ratio) * 2 / 3)
    return 256 * math.ceil(width / 256)


def linear_widths(config, expand_k, expand_v, num_heads):
    heads = config.get("num_heads", num_heads)
    kv_heads = config.get("num_kv_heads") or heads
    keys = int(config["hidden_size"] * config.get("expand_k", expand_k))
    values = int(config["hidden_size"] * config.get("expand_v", expand_v))
    return heads, kv_heads, keys, values


def norm_name(config):
    gated = config.get("use_output_gate", True)
    return "g_norm_swish_gate" if gated and config.get("fuse_norm", True) else "g_norm"


def retnet_mixer(config):
    heads, kv_heads, keys, values = linear_widths(config, 1, 2, 8)
    group, dim = heads // kv_heads, config["hidden_size"]
    shapes = {"q_proj.weight": [keys, dim], "k_proj.weight": [keys // group, dim],
              "v_proj.weight": [values // group, dim], "o_proj.weight": [dim, values]}
    if config.get("use_output_gate", True):
        shapes["g_proj.weight"] = [values, dim]
    if config.get("elementwise_affine", True):
        shapes[f"{norm_name(config)}.weight"] = [values // heads]
    return shapes


def gla_mixer(config):
    heads, kv_heads, keys, values = linear_widths(config, 0.5, 1, 4)
    group, dim, taps = heads // kv_heads, config["hidden_size"], config.get("conv_size", 4)
    shapes = {"q_proj.weight": [keys, dim], "k_proj.weight": [keys // group, dim],
              "v_proj.weight": [values // group, dim], "o_proj.weight": [dim, values],
              "gk_proj.0.weight": [16, dim], "gk_proj.1.weight": [keys // group, 16],
              "gk_proj.1.bias": [keys // group]}
    if config.get("use_output_gate", True):
        shapes["g_proj.weight"] = [values, dim]
    if config.get("elementwise_affine", True):
        shapes[f"{norm_name(config)}.weight"] = [values // heads]
    if config.get("use_short_conv", False):
        shapes |= {"q_conv1d.weight": [keys, 1, taps], "k_conv1d.weight": [keys // group, 1, taps],
                   "v_conv1d.weight": [values // group, 1, taps]}
    return shapes


def linear_attn_mixer(config):
    heads, kv_heads, keys, values = linear_widths(config, 1, 1, 4)
    group, dim, head_dim = heads // kv_heads, config["hidden_size"], keys // heads
    shapes = {"q_proj.weight": [keys, dim], "k_proj.weight": [keys // group, dim],
              "v_proj.weight": [values // group, dim], "o_proj.weight": [dim, values]}
    if config.get("elementwise_affine", True):
        shapes["norm.weight"] = [values // heads]
    layers = {"elementwise_product": ["layer1", "layer2"], "hedgehog": ["layer"], "t2r": ["layer"]}
    feature_map = config.get("feature_map", "elementwise_product")
    for which in "q" if config.get("tie_feature_map_qk", False) else "qk":
        for layer in layers.get(feature_map, []):
            shapes[f"feature_map_{which}.{layer}.weight"] = [head_dim, head_dim]
            if feature_map != "t2r":
                shapes[f"feature_map_{which}.{layer}.bias"] = [head_dim]
    return shapes


def attention_mixer(config, dim):
    heads = config.get("num_heads", 32)
    head_dim = dim // heads
    kv_dim = (config.get("num_kv_heads") or heads) * head_dim
    shapes = {"q_proj.weight": [dim, dim], "k_proj.weight": [kv_dim, dim],
              "v_proj.weight": [kv_dim, dim], "o_proj.weight": [dim, dim]}
    if config.get("qkv_bias", False):
        shapes |= {"q_proj.bias": [dim], "k_proj.bias": [kv_dim], "v_proj.bias": [kv_dim]}
    if config.get("qk_norm", False):
        shapes |= {"q_norm.weight": [head_dim], "k_norm.weight": [head_dim]}
    return shapes


def hybrid_entry(config, layer):
    groups = config.get("attn") or []
    for group in groups if isinstance(groups, list) else [groups]:
        if layer in group["layers"]:
            return group
    return None


def mixer_tensors(config, layer):
    entry = hybrid_entry(config, layer)
    if entry is not None:
        return attention_mixer(entry, config["hidden_size"])
    if config["model_type"] == "transformer":
        return attention_mixer(config, config["hidden_size"])
    mixers = {"retnet": retnet_mixer, "gla": gla_mixer, "linear_attn": linear_attn_mixer,
              "delta_net": reference_delta.delta_net_tensors,
              "gated_deltanet": reference_delta.gated_tensors, "kda": reference_delta.gated_tensors,
              "gated_deltaproduct": reference_delta.product_tensors,
              "hgrn2": reference_gated.hgrn2_tensors, "gsa": reference_gated.gsa_tensors}
    return mixers[config["model_type"]](config)


def tensors(config):
    dim, vocab = config["hidden_size"], config["vocab_size"]
    width = mlp_width(config, 2 if config["model_type"] == "retnet" else 4)
    shapes = {"model.embeddings.weight": [vocab, dim], "model.norm.weight": [dim]}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + "attn_norm.weight": [dim], prefix + "mlp_norm.weight": [dim],
                   prefix + "mlp.gate_proj.weight": [width, dim],
                   prefix + "mlp.up_proj.weight": [width, dim],
                   prefix + "mlp.down_proj.weight": [dim, width]}
        for name, shape in mixer_tensors(config, layer).items():
            shapes[f"{prefix}attn.{name}"] = shape
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = [vocab, dim]
    if config["model_type"] == "hgrn2" and config.get("use_lower_bound", True):
        shapes["model.lower_bounds"] = [config["num_hidden_layers"], dim]
    return shapes


def rms_norm(x, weight, eps):
    y = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def rotate(x, base):
    """Rotates x [T, heads, d]: pairs of channels (j, j + d/2) by t base^(-2j/d)."""
    steps, half = x.shape[0], x.shape[-1] // 2
    angle = torch.arange(steps, dtype=x.dtype)[:, None] * base ** (
        -torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def recurrence(q, k, v, log_decay):
    """Returns [T, H, V]. q, k and log_decay are [T, H, K]; v is [T, H, V]."""
    state = torch.zeros(q.shape[1], q.shape[2], v.shape[2], dtype=q.dtype)
    rows = []
    for t in range(q.shape[0]):
        state = log_decay[t].exp()[..., None] * state + k[t][..., None] * v[t][:, None]
        rows.append(torch.einsum("hk,hkv->hv", q[t], state))
    return torch.stack(rows)


def short_conv(x, weight):
    """Returns SiLU of the causal convolution of x [T, C] with weight [C, 1, W]."""
    taps = weight.shape[-1]
    y = F.conv1d(F.pad(x.t()[None], (taps - 1, 0)), weight, groups=x.shape[1])
    return F.silu(y[0].t())


def linear_attention(config, w, x, log_decay_of):
    defaults = (1, 2, 8) if config["model_type"] == "retnet" else (0.5, 1, 4)
    heads, kv_heads, keys, values = linear_widths(config, *defaults)
    group = heads // kv_heads
    q, k, v = (x @ w[f"{n}_proj.weight"].t() for n in "qkv")
    if config.get("use_short_conv", False) and config["model_type"] == "gla":
        q, k, v = (short_conv(y, w[f"{n}_conv1d.weight"]) for n, y in zip("qkv", (q, k, v)))
    q = q.unflatten(-1, (heads, keys // heads))
    k = k.unflatten(-1, (kv_heads, keys // heads))
    v = v.unflatten(-1, (kv_heads, values // heads))
    if config.get("feature_map"):
        table = FLA_ACTIVATIONS if config["model_type"] == "gla" else ACTIVATIONS
        act = table[config["feature_map"]]
        q, k = act(q), act(k)
    if config["model_type"] == "retnet":
        q, k = rotate(q, 10000.0), rotate(k, 10000.0)
    k, v = (y.repeat_interleave(group, dim=1) for y in (k, v))
    o = recurrence(q * (keys // heads) ** -0.5, k, v, log_decay_of(heads, kv_heads, keys // heads))
    o = rms_norm(o, w.get(f"{norm_name(config)}.weight"), config.get("norm_eps", 1e-6))
    if config.get("use_output_gate", True):
        o = o * F.silu(x @ w["g_proj.weight"].t()).unflatten(-1, (heads, values // heads))
    return o.flatten(1) @ w["o_proj.weight"].t()


def retnet(config, w, x):
    def log_decay(heads, _, key_dim):
        gamma = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=x.dtype))
        return gamma.log()[None, :, None].expand(x.shape[0], heads, key_dim)
    return linear_attention(config, w, x, log_decay)


def gla(config, w, x):
    def log_decay(heads, kv_heads, key_dim):
        logits = x @ w["gk_proj.0.weight"].t() @ w["gk_proj.1.weight"].t() + w["gk_proj.1.bias"]
        g = F.logsigmoid(logits) / 16
        if config.get("clamp_min") is not None:
            g = g.clamp_min(config["clamp_min"])
        return g.unflatten(-1, (kv_heads, key_dim)).repeat_interleave(heads // kv_heads, dim=1)
    return linear_attention(config, w, x, log_decay)


def features(config, w, which, x):
    """Returns fla's feature map of x [..., d]. `which` is "q" or "k"."""
    if config.get("tie_feature_map_qk", False):
        which = "q"
    def layer(name):
        prefix = f"feature_map_{which}.{name}"
        return x @ w[f"{prefix}.weight"].t() + w.get(f"{prefix}.bias", 0)
    name = config.get("feature_map", "elementwise_product")
    if name == "elementwise_product":
        return layer("layer1") * layer("layer2")
    if name == "hedgehog":
        return torch.cat([2 * layer("layer"), -2 * layer("layer")], -1).softmax(-1)
    if name == "t2r":
        return F.relu(layer("layer"))
    if name == "dpfp":
        r = torch.cat([F.relu(x), F.relu(-x)], -1)
        return torch.cat([r * r.roll(shift, -1) for shift in range(1, 5)], -1)
    return {"elu": lambda y: F.elu(y) + 1, "relu": F.relu, "identity": lambda y: y}[name](x)


def linear_attn(config, w, x):
    heads, kv_heads, keys, values = linear_widths(config, 1, 1, 4)
    q, k, v = (x @ w[f"{n}_proj.weight"].t() for n in "qkv")
    q = q.unflatten(-1, (heads, keys // heads))
    k, v = (y.unflatten(-1, (kv_heads, -1)).repeat_interleave(heads // kv_heads, dim=1)
            for y in (k, v))
    q, k = features(config, w, "q", q), features(config, w, "k", k)
    if config.get("norm_q", False):
        q = q / (q.sum(-1, keepdim=True) + 1e-4)
    if config.get("norm_k", False):
        k = k / (k.sum(-1, keepdim=True) + 1e-4)
    q = q * q.shape[-1] ** -0.5
    o = recurrence(q, k, v, torch.zeros_like(k))
    if config.get("norm_feature_map", False):
        o = o / ((q * k.cumsum(0)).sum(-1, keepdim=True) + 1e-10)
    o = rms_norm(o, w.get("norm.weight"), config.get("norm_eps", 1e-6))
    return o.flatten(1) @ w["o_proj.weight"].t()


def attention(config, w, x):
    heads = config.get("num_heads", 32)
    head_dim = x.shape[-1] // heads
    def project(name):
        y = x @ w[f"{name}_proj.weight"].t() + w.get(f"{name}_proj.bias", 0)
        return y.unflatten(-1, (-1, head_dim))
    q, k, v = project("q"), project("k"), project("v")
    if config.get("qk_norm", False):
        q, k = rms_norm(q, w["q_norm.weight"], 1e-5), rms_norm(k, w["k_norm.weight"], 1e-5)
    base = float(config.get("rope_theta", 10000.0))
    q, k = rotate(q, base), rotate(k, base)
    k, v = (y.repeat_interleave(heads // y.shape[1], dim=1) for y in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * head_dim ** -0.5
    i, j = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[0])
    visible = j <= i
    if config.get("window_size"):
        visible &= i - j < config["window_size"]
    scores = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hij,jhd->ihd", scores, v).flatten(1) @ w["o_proj.weight"].t()


def log_probs(config, weights, ids):
    w = {name: tensor.double() for name, tensor in weights.items()}
    eps = config.get("norm_eps", 1e-6)
    x = w["model.embeddings.weight"][torch.tensor(ids)]
    bounds = reference_gated.lower_bounds(config, w)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        own = {n[len(prefix) + 5:]: t for n, t in w.items() if n.startswith(prefix + "attn.")}
        h = rms_norm(x, w[prefix + "attn_norm.weight"], eps)
        entry = hybrid_entry(config, layer)
        if entry is not None:
            x = x + attention(entry, own, h)
        else:
            mixer = {"retnet": retnet, "gla": gla, "linear_attn": linear_attn,
                     "delta_net": reference_delta.delta_net,
                     "gated_deltanet": reference_delta.gated_delta,
                     "gated_deltaproduct": reference_delta.product,
                     "kda": reference_delta.gated_delta, "gsa": reference_gated.gsa,
                     "hgrn2": functools.partial(reference_gated.hgrn2, lower_bound=bounds[layer]),
                     "transformer": attention}[config["model_type"]]
            x = x + mixer(config, own, h)
        h = rms_norm(x, w[prefix + "mlp_norm.weight"], eps)
        gate, up = h @ w[prefix + "mlp.gate_proj.weight"].t(), h @ w[prefix + "mlp.up_proj.weight"].t()
        x = x + (F.silu(gate) * up) @ w[prefix + "mlp.down_proj.weight"].t()
    head = w["model.embeddings.weight" if config.get("tie_word_embeddings") else "lm_head.weight"]
    logits = rms_norm(x, w["model.norm.weight"], eps) @ head.t()
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]
