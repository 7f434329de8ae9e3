#!/usr/bin/env python3
"""Tests that halflife import, score and export agree with the Llama, GPT-2, Mamba, Mamba-2, RWKV-4 and
Kimi Linear of transformers, and with reference_models.py.

    .venv-compare/bin/python tests/interop/hf_models_test.py build/cpu/tests/engine_server
"""

import json
import pathlib

import engine
import reference_models
import reference_rwkv7
import texts
import torch
from engine import halflife
from folder_checks import (ROPE_SCALINGS, TOLERANCE, VOCAB, FolderChecks, change_config, change_weights, files_of,
                           max_difference, score, sequences, shapes_of)
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (AutoConfig, AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer, GenerationConfig,
                          GPT2Config, GPT2LMHeadModel, Mamba2Config, Mamba2ForCausalLM, MambaForCausalLM,
                          PreTrainedTokenizerFast)

SPECIALS = {"bos": "<|begin|>", "eos": "<|end|>", "pad": "<|pad|>"}

# None: the key is left out of config.json.
FRAME = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
FLA_VARIANTS = {
    "retnet": {"model_type": "retnet", "num_heads": 4},
    "retnet_grouped_no_gate": {"model_type": "retnet", "num_heads": 4, "num_kv_heads": 2,
                               "use_output_gate": False, "expand_v": 1, "norm_eps": 1e-5},
    "retnet_features_unfused": {"model_type": "retnet", "num_heads": 2, "feature_map": "gelu",
                                "fuse_norm": False, "elementwise_affine": True},
    "retnet_hybrid": {"model_type": "retnet", "num_heads": 2, "num_hidden_layers": 3,
                      "attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 2, "qkv_bias": True,
                               "window_size": 20, "rope_theta": 500.0}},
    "retnet_defaults": {"model_type": "retnet", "hidden_size": 192, "intermediate_size": None},
    "gla": {"model_type": "gla", "num_heads": 2},
    "gla_conv_grouped": {"model_type": "gla", "num_heads": 4, "num_kv_heads": 2, "clamp_min": -0.05,
                         "use_short_conv": True, "conv_size": 3, "feature_map": "relu"},
    "gla_plain_norm_tied": {"model_type": "gla", "num_heads": 2, "elementwise_affine": False,
                            "tie_word_embeddings": True, "use_output_gate": False},
    "gla_two_groups": {"model_type": "gla", "num_heads": 2, "num_hidden_layers": 3,
                       "attn": [{"layers": [0], "num_heads": 2},
                                {"layers": [2], "num_heads": 4, "window_size": 9}]},
    "gla_gelu_by_tanh": {"model_type": "gla", "num_heads": 2, "feature_map": "gelu"},
    "gla_squared_relu": {"model_type": "gla", "num_heads": 2, "feature_map": "sqrelu"},
    "gla_defaults": {"model_type": "gla", "hidden_size": 192, "intermediate_size": None},
    "gla_conv_size_unused": {"model_type": "gla", "num_heads": 2, "use_short_conv": False,
                             "conv_size": 1},
    "linear_attn": {"model_type": "linear_attn", "num_heads": 2},
    "linear_attn_elu_normalised": {"model_type": "linear_attn", "num_heads": 4, "num_kv_heads": 2,
                                   "feature_map": "elu", "norm_feature_map": True,
                                   "norm_eps": 1e-5},
    "linear_attn_hedgehog_tied": {"model_type": "linear_attn", "num_heads": 2,
                                  "feature_map": "hedgehog", "tie_feature_map_qk": True,
                                  "expand_v": 2, "elementwise_affine": False},
    "linear_attn_t2r": {"model_type": "linear_attn", "num_heads": 2, "feature_map": "t2r"},
    "linear_attn_dpfp": {"model_type": "linear_attn", "num_heads": 2, "feature_map": "dpfp",
                         "norm_q": True, "norm_k": True},
    "linear_attn_identity_hybrid": {"model_type": "linear_attn", "num_heads": 2,
                                    "feature_map": "identity", "num_hidden_layers": 3,
                                    "attn": {"layers": [1], "num_heads": 2}},
    "delta_net": {"model_type": "delta_net", "num_heads": 2},
    "delta_net_gate_negative": {"model_type": "delta_net", "num_heads": 4, "expand_k": 0.5,
                                "use_gate": True, "allow_neg_eigval": True, "conv_size": 3},
    "delta_net_no_conv_no_beta": {"model_type": "delta_net", "num_heads": 2, "use_beta": False,
                                  "use_short_conv": False, "qk_activation": "identity"},
    "delta_net_reflections": {"model_type": "delta_net", "num_heads": 2, "use_beta": False,
                              "allow_neg_eigval": True},
    "delta_net_sum_norm": {"model_type": "delta_net", "num_heads": 2, "qk_norm": "sum",
                           "qk_activation": "elu"},
    "delta_net_sum_norm_of_signs": {"model_type": "delta_net", "num_heads": 2, "qk_norm": "sum"},
    "delta_net_without_attention": {"model_type": "delta_net", "num_heads": 2,
                                    "attn": {"layers": [], "num_heads": 2}},
    "delta_net_hybrid": {"model_type": "delta_net", "num_heads": 2, "num_hidden_layers": 3,
                         "attn": {"layers": [1], "num_heads": 4}},
    "gated_deltanet": {"model_type": "gated_deltanet", "num_heads": 2, "head_dim": 12},
    "gated_deltanet_grouped": {"model_type": "gated_deltanet", "num_heads": 2, "num_v_heads": 4,
                               "head_dim": 8, "expand_v": 1, "allow_neg_eigval": True,
                               "output_gate_activation": "sigmoid"},
    "gated_deltanet_plain": {"model_type": "gated_deltanet", "num_heads": 2, "head_dim": 8,
                             "use_gate": False, "use_short_conv": False, "norm_eps": 1e-5},
    "gated_deltanet_hybrid": {"model_type": "gated_deltanet", "num_heads": 2, "head_dim": 8,
                              "num_hidden_layers": 4,
                              "attn": {"layers": [3], "num_heads": 2, "window_size": 9}},
    "kda": {"model_type": "kda", "num_heads": 2, "head_dim": 16},
    "kda_grouped_negative": {"model_type": "kda", "num_heads": 1, "num_v_heads": 2, "head_dim": 8,
                             "expand_v": 2, "allow_neg_eigval": True, "conv_size": 3},
    "kda_bounded": {"model_type": "kda", "num_heads": 2, "head_dim": 8, "safe_gate": True,
                    "lower_bound": -5.0, "use_short_conv": False},
    "gated_deltaproduct": {"model_type": "gated_deltaproduct", "num_heads": 2, "head_dim": 8,
                           "num_householder": 2, "use_forget_gate": True, "allow_neg_eigval": True},
    "gated_deltaproduct_ungated": {"model_type": "gated_deltaproduct", "num_heads": 2,
                                   "head_dim": 8, "expand_v": 1, "num_householder": 3,
                                   "use_output_gate": False, "conv_size": 3, "norm_eps": 1e-5,
                                   "num_hidden_layers": 3, "attn": {"layers": [1], "num_heads": 2}},
    "gated_deltaproduct_one_step": {"model_type": "gated_deltaproduct", "num_heads": 2,
                                    "head_dim": 12, "use_short_conv": False},
    "hgrn2": {"model_type": "hgrn2", "expand_ratio": 16, "num_hidden_layers": 3},
    "hgrn2_conv_unbounded": {"model_type": "hgrn2", "expand_ratio": 8, "num_heads": 7,
                             "use_short_conv": True, "conv_size": 3, "use_lower_bound": False,
                             "elementwise_affine": False, "norm_eps": 1e-3},
    "hgrn2_hybrid": {"model_type": "hgrn2", "expand_ratio": 8, "num_hidden_layers": 4,
                     "attn": {"layers": [1, 3], "num_heads": 2}, "tie_word_embeddings": True},
    "gsa": {"model_type": "gsa", "num_heads": 2, "num_slots": 10},
    "gsa_grouped_conv": {"model_type": "gsa", "num_heads": 4, "num_kv_heads": 2, "num_slots": 5,
                         "expand_k": 0.5, "use_short_conv": True, "gate_logit_normalizer": 2,
                         "feature_map": "relu", "norm_eps": 1e-3},
    "gsa_t2r_hybrid": {"model_type": "gsa", "num_heads": 2, "num_slots": 6, "feature_map": "t2r",
                       "elementwise_affine": False, "num_hidden_layers": 3,
                       "attn": {"layers": [1], "num_heads": 4, "window_size": 9}},
    "transformer": {"model_type": "transformer", "num_heads": 4, "num_kv_heads": 2,
                    "qk_norm": True, "window_size": 30, "rope_theta": 1000.0, "qkv_bias": True},
    "transformer_defaults": {"model_type": "transformer", "hidden_size": 192,
                             "intermediate_size": None, "qk_norm": True},
}
LLAMA_VARIANTS = {
    "plain": {},
    "tied_grouped": {"tie_word_embeddings": True, "num_key_value_heads": 2},
    "biases": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5},
    "wide_heads": {"head_dim": 12, "num_key_value_heads": 1,
                   "rope_parameters": {"rope_type": "default", "rope_theta": 700.0}},
}
# Classes that derive from Llama. None: the key is null.
LIKE_LLAMA_VARIANTS = {
    "mistral": {"model_type": "mistral", "sliding_window": 30, "num_key_value_heads": 2},
    "mistral_wide_heads_yarn": {"model_type": "mistral", "sliding_window": 9, "head_dim": 12,
                                "num_key_value_heads": 4, "tie_word_embeddings": True,
                                "rope_parameters": ROPE_SCALINGS["yarn"]},
    "mistral_without_window": {"model_type": "mistral", "sliding_window": None,
                               "num_key_value_heads": 4},
    "mistral_with_the_default_window": {"model_type": "mistral", "num_key_value_heads": 1},
    "qwen3": {"model_type": "qwen3", "head_dim": 12, "num_key_value_heads": 2},
    "qwen3_biases_tied": {"model_type": "qwen3", "head_dim": 8, "num_key_value_heads": 1,
                          "attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    "qwen3_heads_of_128": {"model_type": "qwen3", "num_attention_heads": 2, "num_key_value_heads": 2,
                           "rope_parameters": ROPE_SCALINGS["llama3"]},
    "qwen3_window_of_late_layers": {"model_type": "qwen3", "head_dim": 8, "num_key_value_heads": 2,
                                    "num_hidden_layers": 3, "use_sliding_window": True,
                                    "sliding_window": 20, "max_window_layers": 1},
    "qwen3_window_of_all_layers": {"model_type": "qwen3", "head_dim": 8, "num_key_value_heads": 2,
                                   "use_sliding_window": True, "sliding_window": 20,
                                   "max_window_layers": 0},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 2},
    "qwen2_tied_linear": {"model_type": "qwen2", "num_key_value_heads": None, "rms_norm_eps": 1e-5,
                          "tie_word_embeddings": True, "rope_parameters": ROPE_SCALINGS["linear"]},
    "qwen2_wide_heads": {"model_type": "qwen2", "head_dim": 12, "num_key_value_heads": 2},
    "qwen2_layer_types": {"model_type": "qwen2", "num_key_value_heads": 1, "num_hidden_layers": 3,
                          "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3,
                          "layer_types": ["sliding_attention", "full_attention",
                                          "sliding_attention"]},
}
MAMBA_VARIANTS = {
    "defaults": {},
    "other_sizes_untied": {"state_size": 5, "conv_kernel": 3, "expand": 3, "time_step_rank": 7,
                           "layer_norm_epsilon": 1e-3, "tie_word_embeddings": False},
}
MAMBA2_VARIANTS = {
    "one_group": {"n_groups": 1},
    "other_sizes_tied": {"num_heads": 6, "head_dim": 16, "expand": 3, "state_size": 5,
                         "n_groups": 3, "conv_kernel": 3, "layer_norm_epsilon": 1e-3,
                         "tie_word_embeddings": True},
    "biases": {"use_bias": True, "use_conv_bias": False, "n_groups": 8},
    "limits": {"time_step_limit": (0.02, 0.3)},
    "one_limit": {"time_step_limit": (0.05, float("inf"))},
}
KIMI_VARIANTS = {
    "default_layers": {},
    "q_latent_and_biases": {"q_lora_rank": 10, "attention_bias": True, "rms_norm_eps": 1e-3,
                            "layer_types": ["full_attention", "linear_attention"] * 2 +
                                           ["full_attention"]},
    "other_sizes": {"linear_num_heads": 3, "linear_head_dim": 5, "linear_conv_kernel_dim": 3,
                    "qk_rope_head_dim": 3, "v_head_dim": 11, "tie_word_embeddings": True,
                    "num_attention_heads": 3, "num_key_value_heads": None},
    "lists_of_the_checkpoint": {"linear_attn_config": {
        "head_dim": 6, "num_heads": 2, "short_conv_kernel_size": 2, "kda_layers": [1, 4, 5],
        "full_attn_layers": [2, 3]}},
    "layer_types_win": {"layer_types": ["linear_attention"] * 4 + ["full_attention"],
                        "linear_attn_config": {"head_dim": 6, "num_heads": 2,
                                               "kda_layers": [1, 4, 5],
                                               "full_attn_layers": [2, 3]}},
    "only_full_layers": {"layer_types": ["full_attention"] * 5},
    "dense_by_the_old_key": {"mlp_layer_types": None, "first_k_dense_replace": 5},
}
RWKV_VARIANTS = {
    "defaults": {},
    "eps_and_width": {"layer_norm_epsilon": 1e-3, "intermediate_size": 40, "rescale_every": 0},
    "tied_and_deep": {"tie_word_embeddings": True, "num_hidden_layers": 3, "rescale_every": 0},
    "another_width_of_attention": {"attention_hidden_size": 24},
    "halved_after_each_block": {"num_hidden_layers": 4, "rescale_every": 1},
    "halved_between_blocks": {"num_hidden_layers": 3, "rescale_every": 2, "layer_norm_epsilon": 1e-3},
    "negative": {"rescale_every": -1, "initializer_range": 0.0},
}
RWKV7_VARIANTS = {
    "default_ranks": {"head_dim": 8},
    "other_sizes_tied": {"head_dim": 16, "decay_low_rank_dim": 5, "gate_low_rank_dim": 6,
                         "a_low_rank_dim": 7, "v_low_rank_dim": 3, "hidden_ratio": 3.3,
                         "num_hidden_layers": 3, "norm_eps": 1e-3, "tie_word_embeddings": True},
    "plain_norms": {"head_dim": 4, "fuse_norm": False},
    "without_first_norm_and_biases": {"head_dim": 32, "norm_first": False, "norm_bias": False,
                                      "intermediate_size": 40, "value_dim": [32, 32]},
}
GPT2_VARIANTS = {
    "tied": {},
    "untied": {"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
    "inner": {"n_inner": 20, "activation_function": "relu", "n_positions": 200, "resid_pdrop": 0.0},
    "exact_gelu": {"activation_function": "gelu", "tie_word_embeddings": False, "n_inner": 129},
}
RECIPES = pathlib.Path(__file__).resolve().parents[2] / "launch/recipes"


class HfModels(FolderChecks):
    def make_fla_folder(self, config):
        torch.manual_seed(3)
        weights = {}
        for name, shape in reference_models.tensors(config).items():
            is_norm = "norm" in name
            weights[name] = torch.randn(shape) * (0.2 if is_norm else 0.25) + (1.0 if is_norm else 0.0)
        return self.write_folder(config, weights), weights

    def test_fla_classes(self):
        for name, variant in FLA_VARIANTS.items():
            with self.fresh(name):
                config = {key: value for key, value in (FRAME | variant).items() if value is not None}
                folder, weights = self.make_fla_folder(config)
                want = [reference_models.log_probs(config, weights, ids) for ids in sequences()]
                exported = self.check_round_trips(folder, want)
                written = json.loads((exported / "config.json").read_text())
                self.assertEqual(written["model_type"], config["model_type"])
                self.assertEqual(shapes_of(exported), reference_models.tensors(written))

    def test_a_tied_feature_map_under_both_names(self):
        config = FRAME | FLA_VARIANTS["linear_attn_hedgehog_tied"]
        folder, weights = self.make_fla_folder(config)
        maps = {name: name.replace("_q.", "_k.") for name in weights if ".feature_map_q." in name}
        change_weights(folder, lambda all: all.update({maps[name]: all[name].clone() for name in maps}))
        want = [reference_models.log_probs(config, weights, ids) for ids in sequences()]
        self.check_round_trips(folder, want)
        change_weights(folder, lambda all: all.update({maps[name]: all[name] + 1 for name in maps}))
        output = halflife("import", "--from", folder, "--out", self.dir / "other", code=3)
        for name in maps.values():
            self.assertIn(f"unexpected: {name}", output)

    def make_llama_folder(self, **variant):
        return self.make_model_folder(4, "llama", **{
            "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "initializer_range": 0.2} | variant)

    def make_like_llama_folder(self, model_type, **variant):
        return self.make_model_folder(9, model_type, **{
            "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "initializer_range": 0.2, "max_position_embeddings": 256} | variant)

    def make_gpt2_folder(self, **variant):
        return self.make_model_folder(6, "gpt2", **{
            "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256,
            "initializer_range": 0.2} | variant)

    def make_mamba_folder(self, **variant):
        return self.make_model_folder(8, "mamba", **{
            "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.2} | variant)

    def make_mamba2_folder(self, **variant):
        return self.make_model_folder(9, "mamba2", **{
            "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8,
            "state_size": 16, "n_groups": 2, "initializer_range": 0.2} | variant)

    def test_llama_of_transformers(self):
        for name, variant in LLAMA_VARIANTS.items():
            with self.fresh(name):
                folder, model = self.make_llama_folder(**variant)
                self.check_exported_folder(folder, self.log_probs_of(model))

    def test_rope_scalings(self):
        for name, rope in ROPE_SCALINGS.items():
            with self.fresh(name):
                folder, model = self.make_llama_folder(
                    hidden_size=64, max_position_embeddings=256, rope_parameters=dict(rope))
                want = self.log_probs_of(model)
                exported = self.check_exported_folder(folder, want)
                self.check_same_tensors(folder, exported)
                written = json.loads((exported / "config.json").read_text())["rope_parameters"]
                for key in rope.keys() - {"mscale", "mscale_all_dim"}:
                    self.assertEqual(written[key], 4 if rope[key] is None else rope[key], key)
                # The keys of older versions have the same meaning.
                change_config(exported, lambda config: config.pop("rope_parameters"))
                old = AutoModelForCausalLM.from_pretrained(exported).float().eval()
                self.assertEqual(max_difference(self.log_probs_of(old), want), 0)
                self.assertLess(max_difference(score(exported, sequences(), self.dir), want), TOLERANCE)

    def test_classes_like_llama(self):
        for name, variant in LIKE_LLAMA_VARIANTS.items():
            with self.fresh(name):
                folder, model = self.make_like_llama_folder(**variant)
                exported = self.check_exported_folder(folder, self.log_probs_of(model), type(model),
                                             ("--model-type", variant["model_type"]))
                self.check_same_tensors(folder, exported)
                theirs = AutoConfig.from_pretrained(folder).to_dict()
                ours = AutoConfig.from_pretrained(exported).to_dict()
                for key in {"layer_types", "sliding_window", "head_dim", "num_key_value_heads"} & theirs.keys():
                    self.assertEqual(ours[key], theirs[key], key)

    def test_the_exported_class_is_chosen_automatically(self):
        for name, model_type in (("mistral", "mistral"), ("mistral_without_window", "llama"),
                                 ("qwen3", "qwen3"), ("qwen2_layer_types", "qwen2"),
                                 ("qwen2", "llama")):  # the biases of o are written as zeros
            with self.fresh(name):
                folder, model = self.make_like_llama_folder(**LIKE_LLAMA_VARIANTS[name])
                halflife("import", "--from", folder, "--out", self.dir / "run")
                halflife("export", "--run", self.dir / "run", "--out", self.dir / "exported")
                back = AutoModelForCausalLM.from_pretrained(self.dir / "exported").float().eval()
                self.assertEqual(back.config.model_type, model_type)
                self.assertLess(max_difference(self.log_probs_of(back), self.log_probs_of(model)), TOLERANCE)

    def test_generated_texts_of_classes_like_llama(self):
        """Compares the most likely continuations, which are longer than the windows."""
        prompt, count = b"A prompt that is longer than any window here.", 60
        for name in ("qwen3", "qwen3_window_of_late_layers", "qwen2_layer_types", "mistral_wide_heads_yarn"):
            with self.fresh(name):
                folder, model = self.make_like_llama_folder(
                    **LIKE_LLAMA_VARIANTS[name] | {"vocab_size": 259, "initializer_range": 1.0})
                (folder / "tokenizer_config.json").write_text(
                    json.dumps({"tokenizer_class": "ByT5Tokenizer", "extra_ids": 0}))
                ids = [byte + 3 for byte in prompt]
                with torch.no_grad():
                    for _ in range(count):
                        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
                self.assertGreater(len(set(ids[len(prompt):])), 20, "the text repeats itself")
                want = bytes(token - 3 for token in ids if token >= 3)
                halflife("import", "--from", folder, "--out", self.dir / "run")
                for source in (folder, self.dir / "run"):
                    done = engine.run("generate", "--model", source, "--prompt", prompt.decode(),
                                      "--max-tokens", count, "--temperature", 0, "--ignore-eos")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(done.stdout.rstrip(b"\n"), want.rstrip(b"\n"))

    def test_layer_types_of_qwen_without_a_window_are_refused(self):
        folder, _ = self.make_like_llama_folder("qwen3", head_dim=8, num_key_value_heads=2)
        change_config(folder, lambda config: config.update(
            layer_types=["full_attention", "sliding_attention"]))
        output = halflife("import", "--from", folder, "--out", self.dir / "run", code=3)
        self.assertIn("layer_types has sliding_attention, but no window is in use. Set", output)

    def test_other_rotations_are_refused(self):
        folder, _ = self.make_llama_folder()
        change_config(folder, lambda config: config.update(
            rope_parameters=None, rope_scaling={"type": "dynamic", "factor": 2.0}))
        output = halflife("import", "--from", folder, "--out", self.dir / "run", code=3)
        self.assertIn("rope_scaling.rope_type is 'dynamic', whose frequencies depend on the length of "
                      "the text. Use a model with the rope_type default, linear, llama3 or yarn.", output)

    def test_gpt2_of_transformers(self):
        for name, variant in GPT2_VARIANTS.items():
            with self.fresh(name):
                folder, model = self.make_gpt2_folder(**variant)
                exported = self.check_exported_folder(folder, self.log_probs_of(model), GPT2LMHeadModel)
                self.check_same_tensors(folder, exported)
                written = GPT2Config.from_pretrained(exported)
                for key in ("n_positions", "layer_norm_epsilon", "resid_pdrop", "tie_word_embeddings"):
                    self.assertEqual(getattr(written, key), getattr(model.config, key), key)

    def test_gpt2_of_old_versions(self):
        """The tensors have no prefix, masks are stored as buffers, and the config has an old key."""
        folder, model = self.make_gpt2_folder()

        def make_old(weights):
            for name in list(weights):
                weights[name.removeprefix("transformer.")] = weights.pop(name)
            for layer in range(2):
                weights[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 256, 256).tril()
                weights[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

        change_weights(folder, make_old)
        change_config(folder, lambda config: config.update(n_ctx=256))
        exported = self.check_exported_folder(folder, self.log_probs_of(model), GPT2LMHeadModel)
        self.assertTrue(all(name.startswith("transformer.") for name in shapes_of(exported)))

    def test_gpt2_of_other_shapes(self):
        folder, _ = self.make_gpt2_folder()

        def damage(weights):
            weights["transformer.h.1.attn.c_attn.weight"] = torch.zeros(96, 32)
            weights.pop("transformer.h.0.attn.c_attn.bias")

        change_weights(folder, damage)
        output = halflife("import", "--from", folder, "--out", self.dir / "run", code=3)
        self.assertEqual(output.count("c_attn"), 2, output)  # one line for q, k and v together
        self.assertIn("transformer.h.1.attn.c_attn.weight: file [96, 32], model [32, 96]", output)
        self.assertIn("missing: transformer.h.0.attn.c_attn.bias [96]", output)

    def test_mamba_of_transformers(self):
        for name, variant in MAMBA_VARIANTS.items():
            with self.fresh(name):
                folder, model = self.make_mamba_folder(**variant)
                exported = self.check_exported_folder(folder, self.log_probs_of(model), MambaForCausalLM)
                self.check_same_tensors(folder, exported)

    def test_mamba_with_biases_is_refused(self):
        folder, _ = self.make_mamba_folder(use_bias=True, use_conv_bias=False, hidden_act="gelu")
        output = halflife("import", "--from", folder, "--out", self.dir / "run", code=3)
        for problem in ("use_bias is true. Only false is supported.", "use_conv_bias is false",
                        "hidden_act is 'gelu'. Only silu is supported."):
            self.assertIn(problem, output)

    def test_mamba_of_fla(self):
        """fla has other names and defaults of keys."""
        folder, model = self.make_mamba_folder(layer_norm_epsilon=2e-3, time_step_rank=5,
                                               tie_word_embeddings=False)
        fla = {"model_type": "mamba", "vocab_size": VOCAB, "hidden_size": 32,
               "num_hidden_layers": 2, "state_size": 16, "norm_eps": 2e-3, "dt_rank": 5,
               "dt_scale": 1.0, "fuse_norm": True}
        (folder / "config.json").write_text(json.dumps(fla))
        exported = self.check_exported_folder(folder, self.log_probs_of(model), MambaForCausalLM)
        self.check_same_tensors(folder, exported)
        written = json.loads((exported / "config.json").read_text())
        self.assertEqual((written["norm_eps"], written["dt_rank"]), (2e-3, 5))
        change_config(exported, lambda config: config.update(norm_eps=1.0, dt_rank=6))
        output = halflife("import", "--from", exported, "--out", self.dir / "other", code=3)
        self.assertIn("layer_norm_epsilon is 0.002, but norm_eps is 1. Only equal values", output)
        self.assertIn("time_step_rank is 5, but dt_rank is 6. Only equal values", output)

    def test_mamba2_of_transformers(self):
        for name, variant in MAMBA2_VARIANTS.items():
            with self.fresh(name):
                folder, model = self.make_mamba2_folder(**variant)
                exported = self.check_exported_folder(folder, self.log_probs_of(model), Mamba2ForCausalLM)
                self.check_same_tensors(folder, exported)
                written = Mamba2Config.from_pretrained(exported)
                for key, value in model.config.to_dict().items():
                    if key in MAMBA2_VARIANTS["other_sizes_tied"] or key == "hidden_size":
                        self.assertEqual(getattr(written, key), value, key)
                self.assertEqual(list(written.time_step_limit), list(model.config.time_step_limit))

    def make_rwkv_folder(self, **variant):
        torch.manual_seed(11)
        config = AutoConfig.for_model("rwkv", **{
            "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2} | variant)
        model = AutoModelForCausalLM.from_config(config).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 2:
                    torch.nn.init.normal_(parameter, 0, 0.2)
                elif "time_mix" in name:
                    torch.nn.init.uniform_(parameter, -0.2, 1.2)
        self.move_vectors(model)
        folder = self.dir / "original"
        model.save_pretrained(folder, safe_serialization=True)
        return folder, model

    def test_rwkv_of_transformers(self):
        for name, variant in RWKV_VARIANTS.items():
            with self.fresh(name):
                folder, model = self.make_rwkv_folder(**variant)
                exported = self.check_exported_folder(folder, self.log_probs_of(model), type(model))
                self.check_same_tensors(folder, exported)
                written = json.loads((exported / "config.json").read_text())
                width = variant.get("attention_hidden_size", 32)
                halved = variant.get("rescale_every", 0) if name.startswith("halved") else 0
                self.assertEqual((written["rescale_every"], written["attention_hidden_size"]),
                                 (halved, width))

    def test_rwkv_of_another_width_warns(self):
        folder, _ = self.make_rwkv_folder(attention_hidden_size=24)
        output = halflife("import", "--from", folder, "--out", self.dir / "run")
        self.assertIn("attention_hidden_size is 24, and hidden_size 32. transformers runs such a "
                      "model only with use_cache=False.", output)

    def test_rwkv7_of_fla(self):
        for name, variant in RWKV7_VARIANTS.items():
            with self.fresh(name):
                torch.manual_seed(12)
                config = {"model_type": "rwkv7", "vocab_size": VOCAB, "hidden_size": 32,
                          "num_hidden_layers": 2} | variant
                weights = {}
                for key, shape in reference_rwkv7.tensors(config).items():
                    is_norm = key.endswith("norm.weight")
                    weights[key] = torch.randn(shape) * 0.25 + (1.0 if is_norm else 0.0)
                    if key.endswith("k_k"):
                        weights[key] *= 0.01  # short keys, so that the eps of their norm matters
                folder = self.write_folder(config, weights)
                want = [reference_rwkv7.log_probs(config, weights, ids) for ids in sequences()]
                exported = self.check_round_trips(folder, want)
                self.check_same_tensors(folder, exported)
                written = json.loads((exported / "config.json").read_text())
                self.assertEqual(written["model_type"], "rwkv7")
                self.assertEqual(shapes_of(exported), reference_rwkv7.tensors(written))

    def make_kimi_folder(self, **variant):
        return self.make_model_folder(10, "kimi_linear", **{
            "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5,
            "num_attention_heads": 2, "num_key_value_heads": variant.get("num_attention_heads", 2),
            "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
            "linear_head_dim": 8, "linear_num_heads": 2, "mlp_layer_types": ["dense"] * 5,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_local_experts": 4,
            "initializer_range": 0.2} | variant)

    def test_kimi_linear_of_transformers(self):
        for name, variant in KIMI_VARIANTS.items():
            with self.fresh(name):
                folder, model = self.make_kimi_folder(**variant)
                exported = self.check_exported_folder(folder, self.log_probs_of(model), type(model),
                                             ("--model-type", "kimi_linear"))
                self.check_same_tensors(folder, exported, (".block_sparse_moe.", ".mlp."))
                written = AutoConfig.from_pretrained(exported)
                self.assertEqual(written.layer_types, model.config.layer_types)
                lists = json.loads((exported / "config.json").read_text())["linear_attn_config"]
                self.assertEqual([layer - 1 for layer in lists["full_attn_layers"]],
                                 [i for i, kind in enumerate(written.layer_types)
                                  if kind == "full_attention"])

    def test_kimi_linear_with_experts_is_refused(self):
        folder, _ = self.make_kimi_folder(mlp_layer_types=["dense"] + ["sparse"] * 4)
        output = halflife("import", "--from", folder, "--out", self.dir / "run", code=3)
        self.assertIn("mlp_layer_types has sparse for 4 of 5 layers, which then have experts. Use a "
                      "model whose layers are all dense.", output)
        change_config(folder, lambda config: config.pop("mlp_layer_types"))
        output = halflife("import", "--from", folder, "--out", self.dir / "run", code=3)
        self.assertIn("first_k_dense_replace is 1, so layers 1 to 4 have experts.", output)

    def test_a_tied_kimi_linear(self):
        """The class ignores ties, so the head is written out."""
        folder, _ = self.make_kimi_folder()
        halflife("import", "--from", folder, "--out", self.dir / "run")
        (self.dir / "text.txt").write_text("".join(texts.mixed_unicode(200, 13)))
        halflife("prepare", "--input", self.dir / "text.txt", "--tokenizer", "bytes", "--out",
                 self.dir / "data")
        changes = {"data.path": self.dir / "data", "data.seq_len": 64, "model.head.tied": "true",
                   "model.vocab_size": 259, "train.steps": 1, "train.global_batch": 2,
                   "train.micro_batch": 2, "train.device": "cpu", "train.precision": "fp32"}
        halflife("train", "--config", self.dir / "run/config.textproto", "--run", self.dir / "tied",
                 *(word for key, value in changes.items() for word in ("--set", f"{key}={value}")))
        halflife("export", "--run", self.dir / "tied", "--out", self.dir / "exported")
        back = AutoModelForCausalLM.from_pretrained(self.dir / "exported").float().eval()
        self.assertLess(max_difference(score(self.dir / "tied", sequences(), self.dir), self.log_probs_of(back)),
                        TOLERANCE)
        names = shapes_of(self.dir / "exported")
        self.assertEqual(names["lm_head.weight"], names["model.embed_tokens.weight"])

    def test_mamba2_of_fla(self):
        """fla has other names and defaults of keys, and derives the number of heads."""
        folder, model = self.make_mamba2_folder(n_groups=1, layer_norm_epsilon=2e-5,
                                                time_step_limit=(0.02, 0.3))
        fla = {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "vocab_size": VOCAB,
               "hidden_size": 32, "num_hidden_layers": 2, "head_dim": 8, "state_size": 16,
               "norm_eps": 2e-5, "dt_limit": [0.02, 0.3], "A_init_range": [1, 16], "rmsnorm": True,
               "norm_before_gate": False, "D_has_hdim": False, "rescale_prenorm_residual": True}
        (folder / "config.json").write_text(json.dumps(fla))
        exported = self.check_exported_folder(folder, self.log_probs_of(model), Mamba2ForCausalLM)
        self.check_same_tensors(folder, exported)
        written = json.loads((exported / "config.json").read_text())
        self.assertEqual((written["norm_eps"], written["dt_limit"], written["n_groups"]),
                         (2e-5, [0.02, 0.3], 1))

    def test_limits_of_mamba2(self):
        """Python's JSON has a literal for infinity. Export warns, because other programs decode without
        limits."""
        folder, model = self.make_mamba2_folder()
        change_config(folder, lambda config: config.update(time_step_limit=[0.0, float("inf")]))
        self.assertIn("[0.0, Infinity]", (folder / "config.json").read_text())
        exported = self.check_round_trips(folder, self.log_probs_of(model))
        self.assertNotIn("time_step_limit", (exported / "config.json").read_text())
        change_config(folder, lambda config: config.update(time_step_limit=[0.01, float("inf")]))
        halflife("import", "--from", folder, "--out", self.dir / "limited")
        output = halflife("export", "--run", self.dir / "limited", "--out", self.dir / "out")
        self.assertIn("dt_limit_min is 0.01 and dt_limit_max is inf. transformers, mamba_ssm and "
                      "inference engines do not apply these limits to generated tokens.", output)

    def test_mamba2_that_is_refused(self):
        folder, _ = self.make_mamba2_folder()
        change_config(folder, lambda config: config.update(
            norm_eps=1.0, D_has_hdim=True, hidden_act="gelu", num_heads=7, time_step_limit=[2, 1],
            dt_limit=[0, "Infinity"]))
        output = halflife("import", "--from", folder, "--out", self.dir / "run", code=3)
        for problem in ("layer_norm_epsilon is 1e-05, but norm_eps is 1. Only equal values",
                        "D_has_hdim is true. Only false is supported.",
                        "hidden_act is 'gelu'. Only silu is supported.",
                        "num_heads x head_dim is 56. Only expand x hidden_size, 64, is supported.",
                        "time_step_limit is [2,1]. Only two numbers in ascending order",
                        'dt_limit is [0,"Infinity"]. Only two numbers in ascending order'):
            self.assertIn(problem, output)

    def test_norms_of_mamba2_that_only_fla_has(self):
        for keys, norm in (({"norm_before_gate": True}, "norm_first"), ({"rmsnorm": False}, "none")):
            with self.fresh(norm):
                folder, _ = self.make_mamba2_folder(n_groups=1)
                # fla's folders are recognised by keys that only its class has. Both eps have a default.
                own = {"norm_eps": 1e-5} if norm == "none" else {"rmsnorm": True}

                def make_fla(config, keys=keys | own):
                    del config["layer_norm_epsilon"]
                    config.update(keys)

                change_config(folder, make_fla)
                if norm == "none":
                    change_weights(folder, lambda all: [all.pop(name) for name in list(all)
                                                        if name.endswith("mixer.norm.weight")])
                halflife("import", "--from", folder, "--out", self.dir / "run")
                output = halflife("export", "--run", self.dir / "run", "--out", self.dir / "out", code=2)
                self.assertIn(f"mamba2: norm is {norm}. Only gate_first is supported.", output)

    def test_norms_of_mamba2_that_transformers_ignores(self):
        folder, model = self.make_mamba2_folder()
        change_config(folder, lambda config: config.update(norm_before_gate=True, rmsnorm=False,
                                                           rms_norm=True))
        self.check_exported_folder(folder, self.log_probs_of(model), Mamba2ForCausalLM)

    def test_a_rescaled_mamba(self):
        for make in (self.make_mamba_folder, self.make_mamba2_folder):
            with self.fresh(make.__name__):
                folder, _ = make(rescale_prenorm_residual=True)
                output = halflife("import", "--from", folder, "--out", self.dir / "run")
                self.assertIn("rescale_prenorm_residual is true. transformers divides out_proj", output)

    def test_texts_longer_than_the_positions_of_gpt2(self):
        folder, _ = self.make_gpt2_folder(n_positions=64)
        score(folder, [[1] * 65], self.dir)  # the last id is only a target
        (self.dir / "ids.json").write_text(json.dumps([[1] * 66]))
        output = halflife("score", "--model", folder, "--tokens", self.dir / "ids.json", "--out",
                        self.dir / "scores.jsonl", code=2)
        self.assertIn("beyond the model's table of 64 positions", output)

    def test_a_gpt2_trained_here(self):
        (self.dir / "text.txt").write_text("".join(texts.mixed_unicode(200, 13)))
        halflife("prepare", "--input", self.dir / "text.txt", "--tokenizer", "bytes", "--out",
                 self.dir / "data")
        changes = {"data.path": self.dir / "data", "data.seq_len": 200, "model.model_dim": 32,
                   "model.num_layers": 2, "model.mixer.softmax.num_heads": 4,
                   "model.positions.learned.max_positions": 200, "model.initializer_range": 0.2,
                   "train.steps": 3, "train.global_batch": 2, "train.micro_batch": 2,
                   "train.device": "cpu", "train.precision": "fp32", "eval.every": 0,
                   "schedule.warmup_steps": 1, "ckpt.every": 3}
        run, exported = self.dir / "run", self.dir / "exported"
        halflife("train", "--config", RECIPES / "gpt2_124m.textproto", "--run", run,
                 *(word for key, value in changes.items() for word in ("--set", f"{key}={value}")))
        halflife("export", "--run", run, "--out", exported)
        model = AutoModelForCausalLM.from_pretrained(exported).float().eval()
        self.assertIsInstance(model, GPT2LMHeadModel)
        want = self.log_probs_of(model)
        self.assertLess(max_difference(score(run, sequences(), self.dir), want), TOLERANCE)

    def test_a_tokenizer_of_more_ids_than_the_model(self):
        folder, _ = self.make_fla_folder(FRAME | FLA_VARIANTS["gla"])
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "ByT5Tokenizer", "extra_ids": 0}))
        output = halflife("import", "--from", folder, "--out", self.dir / "run", code=3)
        self.assertIn("has 259 ids, but the model has only 61. Replace the tokenizer files", output)
        self.assertFalse((self.dir / "run").exists())

    def test_shards_types_and_ties(self):
        config = FRAME | FLA_VARIANTS["gla_plain_norm_tied"]
        folder, _ = self.make_fla_folder(config)
        run = self.dir / "run"
        halflife("import", "--from", folder, "--out", run)
        halflife("export", "--run", run, "--out", self.dir / "sharded", "--dtype", "bf16",
                 "--max-shard", "8KB", "--untie")
        of_run = score(run, sequences(), self.dir)
        of_step = score(run / "ckpt/step_000000000000", sequences(), self.dir)
        self.assertEqual(max_difference(of_step, of_run), 0)
        index = json.loads((self.dir / "sharded/model.safetensors.index.json").read_text())
        self.assertGreater(len(set(index["weight_map"].values())), 2)
        written = json.loads((self.dir / "sharded/config.json").read_text())
        self.assertEqual((written["dtype"], written["tie_word_embeddings"]), ("bfloat16", False))
        tensors = {}
        for name in set(index["weight_map"].values()):
            tensors |= load_file(self.dir / "sharded" / name)
        self.assertEqual({t.dtype for t in tensors.values()}, {torch.bfloat16})
        self.assertTrue(torch.equal(tensors["lm_head.weight"], tensors["model.embeddings.weight"]))
        for name, tensor in load_file(folder / "model.safetensors").items():
            self.assertTrue(torch.equal(tensors[name], tensor.bfloat16()), name)
        want = [reference_models.log_probs(written, tensors, ids) for ids in sequences()]
        self.assertLess(max_difference(score(self.dir / "sharded", sequences(), self.dir), want), TOLERANCE)

    def test_decays_of_a_bf16_folder_stay_in_fp32(self):
        def export_again(folder, name):
            run, exported = self.dir / f"run_{name}", self.dir / f"exported_{name}"
            halflife("import", "--from", folder, "--out", run)
            halflife("export", "--run", run, "--out", exported, "--dtype", "bf16")
            return exported

        folder, weights = self.make_fla_folder(FRAME | FLA_VARIANTS["gated_deltanet"])
        exported = export_again(folder, "fp32")
        decays = {name for name in weights if name.endswith((".A_log", ".dt_bias"))}
        self.assertEqual(len(decays), 4)
        for name, tensor in load_file(exported / "model.safetensors").items():
            want = weights[name] if name in decays else weights[name].bfloat16()
            self.assertEqual(tensor.dtype, want.dtype, name)
            self.assertTrue(torch.equal(tensor, want), name)
        self.check_same_tensors(exported, export_again(exported, "mixed"))
        # A folder whose tensors are all in bf16 is exported with the same bytes.
        change_weights(exported, lambda all: all.update({n: all[n].bfloat16() for n in decays}))
        again = export_again(exported, "bf16")
        self.check_same_tensors(exported, again)
        types = {tensor.dtype for tensor in load_file(again / "model.safetensors").values()}
        self.assertEqual(types, {torch.bfloat16})

    def test_a_head_in_a_folder_with_tied_embeddings(self):
        for name in ("equal", "other"):
            with self.fresh(name):
                folder, _ = self.make_llama_folder(tie_word_embeddings=True)

                def add_head(weights, other=name == "other"):
                    head = weights["model.embed_tokens.weight"].clone()
                    if other:
                        head[-1] = -head[-1]
                    weights["lm_head.weight"] = head

                change_weights(folder, add_head)
                theirs = AutoModelForCausalLM.from_pretrained(folder).float().eval()
                exported = self.check_exported_folder(folder, self.log_probs_of(theirs))
                written = json.loads((exported / "config.json").read_text())
                self.assertEqual(written["tie_word_embeddings"], name == "equal")
                self.assertEqual("lm_head.weight" in shapes_of(exported), name == "other")
                output = halflife("import", "--from", folder, "--out", self.dir / "again")
                self.assertEqual("The model is read as untied." in output, name == "other")

    def test_a_tied_model_stored_under_the_name_of_its_head(self):
        folder, model = self.make_llama_folder(tie_word_embeddings=True)
        change_weights(folder, lambda weights: weights.update(
            {"lm_head.weight": weights.pop("model.embed_tokens.weight")}))
        self.check_round_trips(folder, self.log_probs_of(model))

    def test_names_without_the_prefix_of_the_class(self):
        """A folder that was saved from the class without a head."""
        for model_type in ("llama", "qwen3", "mamba", "mamba2", "rwkv"):
            with self.fresh(model_type):
                if model_type == "rwkv":
                    folder, model = self.make_rwkv_folder(tie_word_embeddings=True)
                elif model_type.startswith("mamba"):
                    make = {"mamba": self.make_mamba_folder, "mamba2": self.make_mamba2_folder}
                    folder, model = make[model_type](tie_word_embeddings=True)
                else:
                    folder, model = self.make_like_llama_folder(
                        model_type, tie_word_embeddings=True, num_key_value_heads=2, head_dim=8)
                (folder / "model.safetensors").unlink()
                model.base_model.save_pretrained(folder, safe_serialization=True)
                prefix = model.base_model_prefix + "."
                self.assertFalse([name for name in shapes_of(folder) if name.startswith(prefix)])
                self.check_round_trips(folder, self.log_probs_of(model))

    def test_an_untied_model_without_a_head(self):
        folder, _ = self.make_llama_folder()
        change_weights(folder, lambda weights: weights.pop("lm_head.weight"))
        output = halflife("import", "--from", folder, "--out", self.dir / "run", code=3)
        self.assertIn(f"missing: lm_head.weight [{VOCAB}, 32]", output)
        self.assertFalse((self.dir / "run").exists())

    def test_buffers_of_old_folders(self):
        folder, model = self.make_llama_folder()
        names = [f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in range(2)]
        change_weights(folder, lambda weights: weights.update({name: torch.ones(4) for name in names}))
        exported = self.check_exported_folder(folder, self.log_probs_of(model))
        self.assertFalse(shapes_of(exported).keys() & set(names))

    def test_half_precision(self):
        folder, model = self.make_llama_folder()
        with torch.no_grad():
            model.model.embed_tokens.weight[7] *= 1e-5  # subnormal in fp16
        model.half().save_pretrained(folder)
        halves = load_file(folder / "model.safetensors")
        self.assertEqual({tensor.dtype for tensor in halves.values()}, {torch.float16})
        widened = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        exported = self.check_exported_folder(folder, self.log_probs_of(widened))
        for name, tensor in load_file(exported / "model.safetensors").items():
            self.assertTrue(torch.equal(tensor, halves[name].float()), name)

    def test_rope_theta_of_old_versions(self):
        folder, model = self.make_llama_folder(
            rope_parameters={"rope_type": "default", "rope_theta": 700.0})

        def make_old(config):
            del config["rope_parameters"]
            config["rope_theta"] = 700.0

        change_config(folder, make_old)
        exported = self.check_exported_folder(folder, self.log_probs_of(model))
        written = json.loads((exported / "config.json").read_text())
        self.assertEqual((written["rope_theta"], written["rope_parameters"]["rope_theta"]), (700, 700))

    def test_llama_without_optional_keys(self):
        folder, _ = self.make_llama_folder(hidden_size=64, num_attention_heads=32,
                                           intermediate_size=11008)
        (folder / "config.json").write_text(json.dumps(
            {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2}))
        theirs = AutoModelForCausalLM.from_pretrained(folder).float().eval()
        self.check_exported_folder(folder, self.log_probs_of(theirs))

    def test_biases_of_q_k_v_without_o(self):
        """llama's attention_bias includes o_proj, whose bias is written as zeros."""
        config = FRAME | {"model_type": "transformer", "num_heads": 4, "qkv_bias": True}
        folder, weights = self.make_fla_folder(config)
        want = [reference_models.log_probs(config, weights, ids) for ids in sequences()]
        exported = self.check_exported_folder(folder, want)
        self.assertTrue(json.loads((exported / "config.json").read_text())["attention_bias"])
        written = load_file(exported / "model.safetensors")
        for layer in range(2):
            self.assertTrue(torch.equal(written[f"model.layers.{layer}.self_attn.o_proj.bias"],
                                        torch.zeros(32)))

    @staticmethod
    def byte_level_bpe():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(texts.mixed_unicode(300, 11), trainers.BpeTrainer(
            vocab_size=400, special_tokens=list(SPECIALS.values()), show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, **{f"{name}_token": token for name, token in SPECIALS.items()})

    def test_tokenizers_of_exported_folders(self):
        lines = texts.mixed_unicode(40, 12) + ["Plain English, twice.  Twice.\n", " "]
        for name, tokenizer, specials in (("bpe", self.byte_level_bpe(), (0, 1, 2)),
                                          ("bytes", ByT5Tokenizer(extra_ids=0), (None, 1, 0))):
            with self.fresh(name):
                folder, _ = self.make_llama_folder(vocab_size=len(tokenizer))
                tokenizer.save_pretrained(folder)
                exported = self.dir / "exported"
                halflife("import", "--from", folder, "--out", self.dir / "run")
                halflife("export", "--run", self.dir / "run", "--out", exported)
                self.check_tokenizer(exported, tokenizer, lines)
                config = json.loads((exported / "config.json").read_text())
                generation = GenerationConfig.from_pretrained(exported)
                theirs = AutoTokenizer.from_pretrained(exported)
                self.assertEqual(len(theirs), config["vocab_size"])
                for key, number in zip(("bos_token_id", "eos_token_id", "pad_token_id"), specials):
                    self.assertEqual([number] * 4, [getattr(tokenizer, key), config[key],
                                                    getattr(generation, key), getattr(theirs, key)], key)

    def test_tokenizers_of_qwen(self):
        tokenizer, lines = self.byte_level_bpe(), texts.mixed_unicode(40, 12)
        want = [tokenizer(line, add_special_tokens=False).input_ids for line in lines]
        for name, right in (("qwen3", True), ("qwen2", False)):
            with self.fresh(name):
                folder, _ = self.make_like_llama_folder(
                    **LIKE_LLAMA_VARIANTS[name] | {"vocab_size": len(tokenizer)})
                tokenizer.save_pretrained(folder)
                exported = self.dir / "exported"
                halflife("import", "--from", folder, "--out", self.dir / "run")
                output = halflife("export", "--run", self.dir / "run", "--out", exported,
                                  "--model-type", name)
                self.assertEqual("load it with PreTrainedTokenizerFast.from_pretrained." in output, not right)
                automatic = AutoTokenizer.from_pretrained(exported)
                ids = [automatic(line, add_special_tokens=False).input_ids for line in lines]
                self.assertEqual(ids == want, right)
                plain = PreTrainedTokenizerFast.from_pretrained(exported)
                self.assertEqual([plain(line, add_special_tokens=False).input_ids for line in lines], want)

    def test_bytes_where_byt5_does_not_load(self):
        lines = texts.mixed_unicode(40, 12) + ["Plain English, twice.  Twice.\n", " "]
        bytes_of = ByT5Tokenizer(extra_ids=0)
        want = [bytes_of(line, add_special_tokens=False).input_ids for line in lines]
        for name, loader in (("mistral", AutoTokenizer), ("qwen2", PreTrainedTokenizerFast)):
            with self.fresh(name):
                folder, _ = self.make_like_llama_folder(**LIKE_LLAMA_VARIANTS[name] | {"vocab_size": 259})
                (folder / "tokenizer_config.json").write_text(
                    json.dumps({"tokenizer_class": "ByT5Tokenizer", "extra_ids": 0}))
                runs, folders = ["run", "run2"], [folder, self.dir / "exported", self.dir / "exported2"]
                for i, run in enumerate(runs):
                    halflife("import", "--from", folders[i], "--out", self.dir / run)
                    halflife("export", "--run", self.dir / run, "--out", folders[i + 1], "--model-type", name)
                self.assertEqual(files_of(folders[1]), files_of(folders[2]))
                theirs = loader.from_pretrained(folders[1])
                self.assertEqual([theirs(line).input_ids for line in lines], want)
                self.assertEqual([theirs.decode(ids) for ids in want], lines)
                self.assertEqual((len(theirs), theirs.eos_token_id, theirs.pad_token_id), (259, 1, 0))

    def check_tokenizer(self, exported, tokenizer, lines):
        """Checks that AutoTokenizer and halflife give the ids of `tokenizer` for the exported folder, and
        AutoTokenizer also its texts."""
        theirs = AutoTokenizer.from_pretrained(exported)
        want = [tokenizer(line, add_special_tokens=False).input_ids for line in lines]
        self.assertEqual([theirs(line, add_special_tokens=False).input_ids for line in lines], want)
        self.assertEqual([theirs.decode(ids) for ids in want], lines)
        files = []
        for i, line in enumerate(lines):
            files.append(self.dir / f"{i}.txt")
            files[-1].write_bytes(line.encode())
        halflife("score", "--model", exported, "--text", *files, "--out", self.dir / "scores.jsonl")
        scored = (self.dir / "scores.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line)["ids"] for line in scored], want)


if __name__ == "__main__":
    engine.main()
