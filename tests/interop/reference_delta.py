"""Plain fp64 forward passes of fla's delta-rule layers, token by token. reference_models.py uses them.

`NAME_tensors(config)` lists the tensors of a layer with their shapes; `NAME(config, w, x)` maps
x [T, D] to [T, D].
"""

import torch
import torch.nn.functional as F


def delta_rule(q, k, v, beta, log_decay):
    """Returns [T, HV, V]. q and k are [T, H, K], v is [T, HV, V], beta is [T, HV], log_decay is [T, HV, K or 1]."""
    group = v.shape[1] // q.shape[1]
    q, k = (y.repeat_interleave(group, dim=1) for y in (q, k))
    q = q * q.shape[-1] ** -0.5
    state = torch.zeros(v.shape[1], q.shape[2], v.shape[2], dtype=q.dtype)
    rows = []
    for t in range(q.shape[0]):
        state = log_decay[t].exp()[..., None] * state
        old = torch.einsum("hk,hkv->hv", k[t], state)
        state = state + k[t][..., None] * (beta[t][:, None] * (v[t] - old))[:, None]
        rows.append(torch.einsum("hk,hkv->hv", q[t], state))
    return torch.stack(rows)


def l2_norm(x):
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def convolve(x, weight):
    taps = weight.shape[-1]
    return F.conv1d(F.pad(x.t()[None], (taps - 1, 0)), weight, groups=x.shape[1])[0].t()


def rms_norm(x, weight, eps):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def beta_of(config, w, x):
    most = 2 if config.get("allow_neg_eigval") else 1
    if not config.get("use_beta", True):
        return torch.full((x.shape[0], config["num_heads"]), most, dtype=x.dtype)
    return most * torch.sigmoid(x @ w["b_proj.weight"].t())


def conv_tensors(config, dim_k, dim_v):
    if not config.get("use_short_conv", True):
        return {}
    taps = config.get("conv_size", 4)
    return {"q_conv1d.weight": [dim_k, 1, taps], "k_conv1d.weight": [dim_k, 1, taps],
            "v_conv1d.weight": [dim_v, 1, taps]}


def delta_net_widths(config):
    dim = config["hidden_size"]
    return (config.get("num_heads", 16), int(dim * config.get("expand_k", 1)),
            int(dim * config.get("expand_v", 1)))


def delta_net_tensors(config):
    dim, (heads, keys, values) = config["hidden_size"], delta_net_widths(config)
    shapes = {"q_proj.weight": [keys, dim], "k_proj.weight": [keys, dim],
              "v_proj.weight": [values, dim], "o_proj.weight": [dim, values],
              "o_norm.weight": [values // heads]} | conv_tensors(config, keys, values)
    if config.get("use_beta", True):
        shapes["b_proj.weight"] = [heads, dim]
    if config.get("use_gate", False):
        shapes["g_proj.weight"] = [values, dim]
    return shapes


def delta_net(config, w, x):
    heads, keys, values = delta_net_widths(config)
    q, k, v = (x @ w[f"{n}_proj.weight"].t() for n in "qkv")
    if config.get("use_short_conv", True):
        q, k, v = (convolve(y, w[f"{n}_conv1d.weight"]) for n, y in zip("qkv", (q, k, v)))
    v = F.silu(v).unflatten(-1, (heads, values // heads))
    act = {"silu": F.silu, "relu": F.relu, "elu": lambda y: F.elu(y) + 1, "identity": lambda y: y}
    q, k = (act[config.get("qk_activation", "silu")](y).unflatten(-1, (heads, keys // heads))
            for y in (q, k))
    if config.get("qk_norm", "l2") == "l2":
        q, k = l2_norm(q), l2_norm(k)
    else:
        q, k = (x / x.abs().sum(-1, keepdim=True).clamp_min(1e-6) for x in (q, k))
    beta = beta_of(config, w, x)
    o = delta_rule(q, k, v, beta, torch.zeros_like(beta)[..., None])
    o = rms_norm(o, w["o_norm.weight"], config.get("norm_eps", 1e-6)).flatten(1)
    if config.get("use_gate", False):
        o = o * F.silu(x @ w["g_proj.weight"].t())
    return o @ w["o_proj.weight"].t()


def gated_widths(config):
    """Returns the number of heads of q and k, the number of heads of v, and the key and value width of a
    head."""
    kda = config["model_type"] == "kda"
    heads, head_dim = config.get("num_heads", 16 if kda else 6), config.get("head_dim", 128 if kda else 256)
    return (heads, config.get("num_v_heads") or heads, head_dim,
            int(head_dim * config.get("expand_v", 1 if kda else 2)))


def gated_tensors(config):
    dim, (heads, v_heads, key_dim, value_dim) = config["hidden_size"], gated_widths(config)
    keys, values = heads * key_dim, v_heads * value_dim
    shapes = {"q_proj.weight": [keys, dim], "k_proj.weight": [keys, dim],
              "v_proj.weight": [values, dim], "b_proj.weight": [v_heads, dim], "A_log": [v_heads],
              "o_norm.weight": [value_dim], "o_proj.weight": [dim, values]}
    shapes |= conv_tensors(config, keys, values)
    if config["model_type"] == "kda":
        return shapes | {"f_proj.0.weight": [value_dim, dim],
                         "f_proj.1.weight": [v_heads * key_dim, value_dim],
                         "dt_bias": [v_heads * key_dim], "g_proj.0.weight": [value_dim, dim],
                         "g_proj.1.weight": [values, value_dim], "g_proj.1.bias": [values]}
    shapes |= {"a_proj.weight": [v_heads, dim], "dt_bias": [v_heads]}
    if config.get("use_gate", True):
        shapes["g_proj.weight"] = [values, dim]
    return shapes


def gated_delta(config, w, x):
    """GatedDeltaNet and KDA."""
    heads, v_heads, key_dim, value_dim = gated_widths(config)
    q, k, v = (x @ w[f"{n}_proj.weight"].t() for n in "qkv")
    if config.get("use_short_conv", True):
        q, k, v = (convolve(y, w[f"{n}_conv1d.weight"]) for n, y in zip("qkv", (q, k, v)))
    q, k, v = F.silu(q), F.silu(k), F.silu(v)
    q, k = (l2_norm(y.unflatten(-1, (heads, key_dim))) for y in (q, k))
    rate = w["A_log"].exp()
    if config["model_type"] == "kda":
        z = (x @ w["f_proj.0.weight"].t() @ w["f_proj.1.weight"].t() + w["dt_bias"])
        z = z.unflatten(-1, (v_heads, key_dim))
        if config.get("lower_bound") is None:
            g = -rate[:, None] * F.softplus(z)
        else:
            g = config["lower_bound"] * torch.sigmoid(rate[:, None] * z)
    else:
        g = (-rate * F.softplus(x @ w["a_proj.weight"].t() + w["dt_bias"]))[..., None]
    o = delta_rule(q, k, v.unflatten(-1, (v_heads, value_dim)), beta_of(config, w, x), g)
    o = rms_norm(o, w["o_norm.weight"], config.get("norm_eps", 1e-6)).flatten(1)
    if config["model_type"] == "kda":
        gate = x @ w["g_proj.0.weight"].t() @ w["g_proj.1.weight"].t() + w["g_proj.1.bias"]
        o = o * torch.sigmoid(gate)
    elif config.get("use_gate", True):
        gate = x @ w["g_proj.weight"].t()
        sigmoid = config.get("output_gate_activation", "swish") == "sigmoid"
        o = o * (torch.sigmoid(gate) if sigmoid else F.silu(gate))
    return o @ w["o_proj.weight"].t()


def product_sizes(config):
    heads, key_dim = config.get("num_heads", 6), config.get("head_dim", 256)
    return heads, key_dim, int(key_dim * config.get("expand_v", 2)), config.get("num_householder", 1)


def product_tensors(config):
    dim, (heads, key_dim, value_dim, steps) = config["hidden_size"], product_sizes(config)
    keys, values = heads * key_dim, heads * value_dim
    shapes = {"q_proj.weight": [keys, dim], "k_proj.weight": [steps * keys, dim],
              "v_proj.weight": [steps * values, dim], "b_proj.weight": [steps * heads, dim],
              "o_norm.weight": [value_dim], "o_proj.weight": [dim, values]}
    if config.get("use_short_conv", True):
        taps = config.get("conv_size", 4)
        shapes |= {f"{n}_conv1d.weight": [shapes[f"{n}_proj.weight"][0], 1, taps] for n in "qkv"}
    if config.get("use_forget_gate", False):
        shapes |= {"a_proj.weight": [heads, dim], "A_log": [heads], "dt_bias": [heads]}
    if config.get("use_output_gate", True):
        shapes["g_proj.weight"] = [values, dim]
    return shapes


def product(config, w, x):
    """Gated DeltaProduct. The steps of a token are applied one after the other. The decay precedes the first
    step."""
    heads, key_dim, value_dim, steps = product_sizes(config)
    q, k, v = (x @ w[f"{n}_proj.weight"].t() for n in "qkv")
    if config.get("use_short_conv", True):
        q, k, v = (convolve(y, w[f"{n}_conv1d.weight"]) for n, y in zip("qkv", (q, k, v)))
    q, k, v = F.silu(q), F.silu(k), F.silu(v)
    q = l2_norm(q.unflatten(-1, (heads, key_dim)))
    k = l2_norm(k.unflatten(-1, (steps, heads, key_dim)))
    v, beta = v.unflatten(-1, (steps, heads, value_dim)), beta_of(config, w, x).unflatten(-1, (steps, heads))
    decay = torch.ones(x.shape[0], heads, dtype=x.dtype)
    if config.get("use_forget_gate", False):
        decay = (-w["A_log"].exp() * F.softplus(x @ w["a_proj.weight"].t() + w["dt_bias"])).exp()
    state = torch.zeros(heads, key_dim, value_dim, dtype=x.dtype)
    rows = []
    for t in range(x.shape[0]):
        state = decay[t][:, None, None] * state
        for i in range(steps):
            old = torch.einsum("hk,hkv->hv", k[t, i], state)
            state = state + k[t, i][..., None] * (beta[t, i][:, None] * (v[t, i] - old))[:, None]
        rows.append(torch.einsum("hk,hkv->hv", q[t] * key_dim ** -0.5, state))
    o = rms_norm(torch.stack(rows), w["o_norm.weight"], config.get("norm_eps", 1e-6)).flatten(1)
    if config.get("use_output_gate", True):
        o = o * F.silu(x @ w["g_proj.weight"].t())
    return o @ w["o_proj.weight"].t()
