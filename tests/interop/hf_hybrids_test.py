#!/usr/bin/env python3
"""Tests that halflife import, score and export agree with transformers for hybrids of Mamba-2 and softmax
attention.

    .venv-compare/bin/python tests/interop/hf_hybrids_test.py build/cpu/tests/engine_server
"""

import random

import engine
import folder_checks as shared
import torch
from transformers import AutoConfig, AutoModelForCausalLM

# None: the key is left out of the config.
FRAME = {"vocab_size": shared.VOCAB, "hidden_size": 32, "initializer_range": 0.2,
         "num_attention_heads": 4, "num_key_value_heads": 2}
NEMOTRON = FRAME | {"model_type": "nemotron_h", "head_dim": 8, "intermediate_size": 48,
                    "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2}
NEMOTRON_VARIANTS = {
    "every_kind_of_block": {"hybrid_override_pattern": "M-M*-*M-"},
    "heads_of_other_widths": {"hybrid_override_pattern": "*-M-", "head_dim": 20,
                              "num_key_value_heads": 1, "mamba_num_heads": 6, "mamba_head_dim": 5,
                              "n_groups": 3, "conv_kernel": 3, "layer_norm_epsilon": 1e-3},
    "biases": {"hybrid_override_pattern": "M*M-", "use_bias": True, "mlp_bias": True,
               "use_conv_bias": False, "mlp_hidden_act": "gelu", "attention_bias": True},
    "names_of_layers": {"layers_block_type": ["linear_attention", "mlp", "full_attention"]},
    "no_mlp": {"hybrid_override_pattern": "MM*"},
    "no_attention": {"hybrid_override_pattern": "M-M-", "n_groups": 8},
    "attention_only": {"hybrid_override_pattern": "*-*"},
    "quick_gelu_and_one_tap": {"hybrid_override_pattern": "M-*-", "mlp_hidden_act": "quick_gelu",
                               "conv_kernel": 1},
    "a_large_lower_limit": {"hybrid_override_pattern": "MM-", "time_step_min": 0.05},
}
# The keys of Mamba-2 in the other classes.
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 2,
          "num_hidden_layers": 3}
GRANITE = FRAME | MAMBA2 | {"model_type": "granitemoehybrid", "num_local_experts": 0,
                            "shared_intermediate_size": 48,
                            "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
GRANITE_VARIANTS = {
    "defaults": {},
    "factors": {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0,
                "attention_multiplier": 0.0078125, "tie_word_embeddings": True},
    "factors_without_short_inverses": {"embedding_multiplier": 1.7, "logits_scaling": 4.9,
                                       "residual_multiplier": 0.7, "attention_multiplier": 0.3},
    "rotation": {"position_embedding_type": "rope", "attention_bias": True,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 700.0}},
    "rotation_for_long_texts": {"position_embedding_type": "rope", "max_position_embeddings": 256,
                                "rope_parameters": shared.ROPE_SCALINGS["yarn"]},
    "biases_and_limits": {"mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_d_conv": 3,
                          "mamba_n_groups": 1, "time_step_limit": (0.02, 0.5), "rms_norm_eps": 1e-3},
    "wide_heads": {"head_dim": 12, "num_key_value_heads": None, "mamba_d_head": "auto",
                   "mamba_n_heads": 4, "mamba_expand": 3},
    "mamba_only": {"layer_types": None},
    "attention_only": {"layer_types": ["full_attention"] * 3, "position_embedding_type": "rope"},
}
BAMBA = FRAME | MAMBA2 | {"model_type": "bamba", "intermediate_size": 48, "attn_layer_indices": [1]}
BAMBA_VARIANTS = {
    "defaults": {},
    "biases_tied": {"attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True,
                    "mamba_conv_bias": False, "tie_word_embeddings": True, "mamba_d_conv": 3},
    "no_attention": {"attn_layer_indices": None},
    "attention_only": {"attn_layer_indices": [0, 1, 2]},
    "wide_heads_and_limits": {"head_dim": 12, "time_step_limit": (0.0, 0.3), "rms_norm_eps": 1e-3,
                              "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    # int(head_dim * 0.5) channels rotate.
    "heads_too_narrow_to_rotate": {"head_dim": 1, "mamba_d_conv": 1},
    "another_share_rotates": {"head_dim": 16, "rope_parameters": {
        "rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 0.25}},
    "rotation_for_long_texts": {"head_dim": 16, "max_position_embeddings": 256, "rope_parameters":
                                shared.ROPE_SCALINGS["llama3"] | {"partial_rotary_factor": 0.75}},
}
FALCON = FRAME | MAMBA2 | {"model_type": "falcon_h1", "intermediate_size": 48, "mamba_d_ssm": 64}
FALCON_FACTORS = {"embedding_multiplier": 5.5, "lm_head_multiplier": 0.04, "key_multiplier": 0.4,
                  "mlp_multipliers": [0.9, 0.3], "ssm_multipliers": [0.35, 0.25, 0.7, 1.4, 0.3],
                  "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.25,
                  "attention_in_multiplier": 0.75, "attention_out_multiplier": 0.9}
FALCON_VARIANTS = {
    "defaults": {},
    "factors": FALCON_FACTORS,
    "norm_first_tied": {"mamba_rms_norm": True, "tie_word_embeddings": True} | FALCON_FACTORS,
    "gate_first": {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "rms_norm_eps": 1e-3},
    "all_biases": {"mamba_proj_bias": True, "projectors_bias": True, "attention_bias": True,
                   "mlp_bias": True} | FALCON_FACTORS,
    "a_bias_of_in_proj": {"mamba_proj_bias": True, "mamba_conv_bias": False},
    "a_bias_of_out_proj": {"projectors_bias": True, "time_step_limit": (0.02, 0.5)},
    "an_expanded_width": {"mamba_d_ssm": None, "mamba_expand": 1, "mamba_n_heads": 4, "head_dim": 12,
                          "rope_parameters": {"rope_type": "default", "rope_theta": 1e11}},
    "an_odd_width": {"mamba_d_ssm": 40, "mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_d_conv": 2},
}


class Hybrids(shared.FolderChecks):
    @staticmethod
    def log_probs_of(model):
        """Runs without a cache, because transformers has none for models without attention layers."""
        rows = []
        for ids in shared.sequences():
            with torch.no_grad():
                logits = model(torch.tensor([ids]), use_cache=False).logits[0].double()
            rows.append(logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0])
        return rows

    def make_folder(self, **config):
        return self.make_model_folder(12, **{k: v for k, v in config.items()
                                       if v is not None or k == "mamba_d_ssm"})

    def check_class(self, config, keys=()):
        """Checks round trips. The exported folder must have the tensors of the original and its values of
        `keys`."""
        folder, model = self.make_folder(**config)
        exported = self.check_exported_folder(folder, self.log_probs_of(model), type(model),
                                     ("--model-type", config["model_type"]))
        self.check_same_tensors(folder, exported)
        theirs, ours = (AutoConfig.from_pretrained(path).to_dict() for path in (folder, exported))
        # A model without Mamba-2 layers does not store the sizes of these keys.
        has_mamba = any("mamba" in name for name, _ in model.named_parameters())
        for key in keys:
            if has_mamba or not key.startswith("mamba_"):
                self.assertEqual(ours[key] or None, theirs[key] or None, key)
        return folder, exported

    def check_variants(self, frame, variants, keys=()):
        for name, variant in variants.items():
            with self.fresh(name):
                self.check_class(frame | variant, keys)

    def refused(self, folder, **changes):
        shared.change_config(folder, lambda config: config.update(changes))
        return engine.halflife("import", "--from", folder, "--out", self.dir / "refused", code=3)

    def test_nemotron_h(self):
        self.check_variants(NEMOTRON, NEMOTRON_VARIANTS, ("layers_block_type", "time_step_min"))

    def test_generating_without_attention_layers(self):
        """transformers has no cache for such models, so the exported folder switches it off."""
        for frame, variant, has_cache in ((GRANITE, {}, True), (GRANITE, {"layer_types": None}, False),
                                          (BAMBA, {"attn_layer_indices": None}, False),
                                          (NEMOTRON, {"hybrid_override_pattern": "M-M-"}, False)):
            with self.fresh(f"{frame['model_type']} {variant}"):
                folder, _ = self.make_folder(**frame | variant)
                exported = self.dir / "exported"
                engine.halflife("import", "--from", folder, "--out", self.dir / "run")
                output = engine.halflife("export", "--run", self.dir / "run", "--out", exported,
                                         "--model-type", frame["model_type"])
                self.assertEqual("no layer has attention" in output, not has_cache)
                model = AutoModelForCausalLM.from_pretrained(exported)
                self.assertEqual(model.config.use_cache, has_cache)
                self.assertEqual(model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=2).shape, (1, 5))

    def test_nemotron_h_with_other_keys(self):
        """The folder has the pattern, keys of older versions, keys without effect, layers for multi-token
        prediction, and the tensor names of the class."""
        folder, model = self.make_folder(**NEMOTRON, hybrid_override_pattern="M-*-")
        want = self.log_probs_of(model)

        def make_old(config):
            del config["layers_block_type"]
            config.pop("layer_types", None)
            config["mamba_n_groups"], config["mamba_d_conv"] = config.pop("n_groups"), config.pop("conv_kernel")
            config.update(hybrid_override_pattern="M-*-", num_hidden_layers=52, tie_word_embeddings=True,
                          attention_bias=True, time_step_limit=[0.5, 0.6], expand=7)

        shared.change_config(folder, make_old)
        shared.change_weights(folder, lambda all: all.update(
            {name.replace("backbone.", "model."): all.pop(name) for name in list(all)} |
            {"mtp.layers.0.norm.weight": torch.ones(32)}))
        self.check_round_trips(folder, want)

    def test_the_lower_limit_of_nemotron_h(self):
        folder, _ = self.make_folder(**NEMOTRON, hybrid_override_pattern="M-")
        output = engine.halflife("import", "--from", folder, "--out", self.dir / "run")
        self.assertIn("time_step_min is 0.001. transformers and halflife limit the step sizes", output)
        output = engine.halflife("export", "--run", self.dir / "run", "--out", self.dir / "out",
                               "--model-type", "nemotron_h")
        self.assertIn("dt_limit_min is 0.001 and dt_limit_max is inf.", output)
        shared.change_config(folder, lambda config: config.update(time_step_min=0.0))
        output = engine.halflife("import", "--from", folder, "--out", self.dir / "unlimited")
        self.assertNotIn("time_step_min", output)

    def test_nemotron_h_that_is_refused(self):
        folder, _ = self.make_folder(**NEMOTRON, hybrid_override_pattern="M-")
        for problem, pattern in (("has E (experts) for layer 1. Use a model without experts.", "ME"),
                                 ("has - for layer 0, which follows neither M nor *.", "-M"),
                                 ("has - for layer 2, which follows neither M nor *.", "M--"),
                                 ("has X for layer 1. Use a model that has only M, * and -.", "MX")):
            output = self.refused(folder, hybrid_override_pattern=pattern, layers_block_type=None)
            self.assertIn("hybrid_override_pattern " + problem, output)
        output = self.refused(folder, hybrid_override_pattern="M*", layers_block_type=["mamba", "mlp"],
                            mamba_hidden_act="gelu", time_step_min=-1.0, attention_head_dim=9)
        for problem in ("hybrid_override_pattern and layers_block_type differ. Remove one of them.",
                        "mamba_hidden_act is 'gelu'. Only silu is supported.",
                        "time_step_min is -1. Use a number of at least 0.",
                        "attention_head_dim is 9, but head_dim is 8."):
            self.assertIn(problem, output)

    def test_nemotron_h_of_random_sizes(self):
        for seed in range(3):
            draw = random.Random(seed)
            groups, heads = draw.choice((1, 2, 4)), draw.choice((1, 2, 3))
            pattern = "".join(draw.choice(("M", "M-", "*", "*-")) for _ in range(3))
            config = NEMOTRON | {
                "hybrid_override_pattern": pattern, "n_groups": groups,
                "mamba_num_heads": groups * draw.choice((1, 2, 3)), "mamba_head_dim": draw.choice((4, 7, 12)),
                "ssm_state_size": draw.choice((3, 8, 17)), "conv_kernel": draw.choice((2, 3, 4)),
                "num_key_value_heads": heads, "num_attention_heads": heads * draw.choice((1, 2)),
                "head_dim": draw.choice((4, 6, 16)), "use_bias": draw.random() < 0.5,
                "mlp_bias": draw.random() < 0.5, "use_conv_bias": draw.random() < 0.5,
                "time_step_min": draw.choice((1e-3, 0.02)), "intermediate_size": draw.choice((24, 40))}
            with self.fresh(f"{seed}_{pattern}"):
                self.check_class(config)

    def test_granitemoehybrid(self):
        self.check_variants(GRANITE, GRANITE_VARIANTS, (
            "layer_types", "embedding_multiplier", "residual_multiplier", "logits_scaling"))

    def test_granitemoehybrid_with_older_names(self):
        folder, model = self.make_folder(**GRANITE)

        def make_old(config):
            del config["layer_types"]
            config["layers_block_type"] = ["mamba", "attention", "mamba"]
            config.update(position_embedding_type="nope", rope_scaling=None, rope_theta=10000,
                          normalization_function="rmsnorm", init_method="mup")

        shared.change_config(folder, make_old)
        self.check_exported_folder(folder, self.log_probs_of(model), type(model),
                          ("--model-type", "granitemoehybrid"))

    def test_granitemoehybrid_that_is_refused(self):
        folder, _ = self.make_folder(**GRANITE)
        output = self.refused(folder, num_local_experts=4, logits_scaling=0, attention_multiplier=-1.0,
                            layer_types=["mamba", "sliding_attention", "mamba"], mamba_n_heads=7)
        for problem in ("num_local_experts is 4. Use a model without experts (num_local_experts 0).",
                        "logits_scaling is 0. Use a number above 0.",
                        "attention_multiplier is -1. Use a number above 0.",
                        'layer_types has "sliding_attention" for layer 1.',
                        "mamba_n_heads x mamba_d_head is 56. Only mamba_expand x hidden_size, 64,"):
            self.assertIn(problem, output)

    def test_bamba(self):
        self.check_variants(BAMBA, BAMBA_VARIANTS, ("attn_layer_indices", "mamba_d_head"))

    def test_bamba_with_another_key_of_the_rotation(self):
        """transformers rotates half of a head and ignores the key outside of rope_parameters."""
        folder, model = self.make_folder(**BAMBA)

        def make_old(config):
            config.pop("rope_parameters")
            config.update(partial_rotary_factor=1.0, rope_theta=10000.0, attn_rotary_emb=4)

        shared.change_config(folder, make_old)
        self.check_round_trips(folder, self.log_probs_of(model), "--model-type", "bamba")

    def test_bamba_with_numbers_beyond_its_layers(self):
        folder, model = self.make_folder(**BAMBA | {"attn_layer_indices": [1, 9, 1]})
        self.check_round_trips(folder, self.log_probs_of(model))

    def test_attention_beside_sizes_of_mamba2_without_layers(self):
        """The class ignores these sizes. A head of Mamba-2 of 640 channels is too wide for halflife."""
        folder, model = self.make_folder(**GRANITE | {
            "layer_types": ["full_attention"] * 3, "hidden_size": 640, "initializer_range": 0.02,
            "mamba_n_heads": 1, "mamba_d_head": 640, "mamba_expand": 1})
        self.check_round_trips(folder, self.log_probs_of(model), "--model-type", "granitemoehybrid")

    def test_bamba_that_is_refused(self):
        folder, _ = self.make_folder(**BAMBA)
        output = self.refused(folder, attn_layer_indices="all", hidden_act="gelu", mamba_d_head=9)
        for problem in ("attn_layer_indices is not a list. Write the numbers of the layers",
                        "hidden_act is 'gelu'. Only silu is supported.",
                        "mamba_n_heads x mamba_d_head is 72. Only mamba_expand x hidden_size, 64,"):
            self.assertIn(problem, output)

    def test_falcon_h1(self):
        self.check_variants(FALCON, FALCON_VARIANTS, tuple(FALCON_FACTORS) + (
            "mamba_rms_norm", "mamba_norm_before_gate", "mamba_proj_bias", "projectors_bias"))

    def test_falcon_h1_that_is_refused(self):
        folder, _ = self.make_folder(**FALCON)
        output = self.refused(folder, ssm_multipliers=[1, 2], mlp_multipliers=["a", 1], mamba_d_ssm=60,
                            lm_head_multiplier=0.0)
        for problem in ("ssm_multipliers is not a list of 5 numbers. Write 5 numbers, or remove",
                        "mlp_multipliers is not a list of 2 numbers.",
                        "mamba_n_heads x mamba_d_head is 64. Only mamba_d_ssm, 60, is supported.",
                        "lm_head_multiplier is 0. Use a number above 0."):
            self.assertIn(problem, output)

    def test_keys_that_are_null(self):
        """A null key means false, or PyTorch's default scale of scores, instead of the default of the
        class."""
        for config in (FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
                       FALCON | {"mamba_conv_bias": False}, BAMBA | {"mamba_conv_bias": False},
                       GRANITE | {"attention_multiplier": 8 ** -0.5}):
            key = list(config)[-1]
            with self.fresh(config["model_type"] + "_" + key):
                folder, model = self.make_folder(**config)
                shared.change_config(folder, lambda written, key=key: written.update({key: None}))
                theirs = AutoModelForCausalLM.from_pretrained(folder).float().eval()
                self.assertLess(shared.max_difference(self.log_probs_of(theirs), self.log_probs_of(model)), 1e-5)
                self.check_round_trips(folder, self.log_probs_of(model),
                                       "--model-type", config["model_type"])


if __name__ == "__main__":
    engine.main()
