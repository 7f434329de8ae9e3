#include "train/config/foreign_names.h"

#include <algorithm>
#include <cctype>

#include "core/concat.h"

namespace halflife::train {
namespace {

constexpr ForeignName kForeignNames[] = {
    // Optimizer and schedule.
    {"learning_rate, peak_lr, max_lr, base_lr, peak_learning_rate", "optimizer.lr", "3e-4", ""},
    {"adam_beta1, adamw_beta1, beta_1", "optimizer.beta1", "0.9", ""},
    {"adam_beta2, adamw_beta2, beta_2", "optimizer.beta2", "0.95", ""},
    {"betas, adam_betas", "optimizer.beta1", "0.9", "The second number is optimizer.beta2."},
    {"adam_epsilon, adam_eps, epsilon", "optimizer.eps", "1e-8", ""},
    {"wd, weight_decay_rate, decay_rate, l2", "optimizer.weight_decay", "0.1", ""},
    {"max_grad_norm, grad_clip, clip_grad, grad_clip_norm, clip_grad_norm, gradient_clipping, "
     "gradient_clip_val, max_norm, clip",
     "optimizer.clip_norm", "1", "It is the largest global norm of the gradient."},
    {"optim, optimizer_type, optimizer_name, optimizer.name, optimizer.type, optimizer.kind, "
     "optimizer.class, adam, adamw",
     "optimizer.lr", "3e-4", "AdamW is the default. A recipe may name it: algorithm { adamw {} }."},
    {"muon, moonlight", "optimizer.algorithm", "{ muon {} }", ""},
    {"ema, swa, ema_rate, ema_beta, use_ema", "optimizer.ema_decay", "0.999",
     "`halflife eval --weights ema` scores the average."},
    {"lr_scheduler_type, lr_scheduler, lr_schedule, lr_decay_style, scheduler, scheduler_type, "
     "schedule.name, schedule.type",
     "schedule.kind", "\"cosine\"", "The kinds are cosine, linear, constant and wsd."},
    {"warmup, warmup_iters, num_warmup_steps, lr_warmup_steps, lr_warmup_iters",
     "schedule.warmup_steps", "100", ""},
    {"warmup_ratio, warmup_fraction, lr_warmup_fraction, warmup_percent", "schedule.warmup_steps",
     "100", "It is a number of steps: multiply the ratio by train.steps."},
    {"min_lr, min_lr_ratio, min_lr_rate, lr_min, final_lr, end_lr, eta_min",
     "schedule.final_lr_ratio", "0.1", "It is a fraction of optimizer.lr."},
    {"lr_decay_steps, lr_decay_iters, num_decay_steps", "schedule.decay_steps", "200",
     "Only the schedule wsd reads it. The others end at train.steps."},

    // Length of the run, batch and precision.
    {"max_steps, num_steps, total_steps, max_iters, train_iters, num_train_steps, train_steps, "
     "training_steps, iterations, num_iterations, max_train_steps",
     "train.steps", "1000", ""},
    {"shuffle, shuffle_seed, data_seed", "train.seed", "1",
     "Samples are always shuffled, by this seed."},
    {"epochs, num_epochs, num_train_epochs, max_epoch, n_epochs", "train.max_epochs", "1", ""},
    {"max_tokens, total_tokens, train_tokens, num_tokens", "train.steps", "1000",
     "A step trains on train.global_batch x data.seq_len tokens."},
    {"batch_size, train_batch_size, global_batch_size, total_batch_size", "train.global_batch", "8",
     "It counts rows of data.seq_len tokens over all ranks."},
    {"micro_batch_size, per_device_train_batch_size, per_device_batch_size, device_batch_size, "
     "local_batch_size, train_micro_batch_size_per_gpu, mbs",
     "train.micro_batch", "8", "It counts rows of one forward pass on one rank."},
    {"grad_accum, grad_accum_steps, gradient_accumulation, gradient_accumulation_steps, "
     "accumulate_grad_batches, accumulation_steps",
     "train.global_batch", "8",
     "halflife derives the accumulation: train.global_batch / (train.micro_batch x data-parallel "
     "ranks)."},
    {"bf16, dtype, torch_dtype, param_dtype, compute_dtype, mixed_precision, amp, autocast",
     "train.precision", "\"bf16\"", "It is fp32, bf16 or fp8. The main weights are always fp32."},
    {"float8, enable_fp8, fp8_format, fp8_recipe, enable_float8_linear, fp8_hybrid",
     "train.precision", "\"fp8\"",
     "The large products are then in FP8. train.fp8.min_width chooses them."},
    {"fp16, float16, half", "train.precision", "\"bf16\"",
     "fp16 is not supported. bf16 needs no loss scale."},
    {"random_seed, rng_seed", "train.seed", "1", ""},
    {"gradient_checkpointing, activation_checkpointing, checkpoint_activations, "
     "activation_checkpoint, recompute_granularity, remat",
     "train.recompute", "\"block\"", "It is none, mixer or block."},
    {"cuda_graph, use_cuda_graph", "train.cuda_graphs", "true", ""},
    {"use_cuda, cuda, gpu, accelerator", "train.device", "\"cuda\"", ""},
    {"num_threads, omp_num_threads", "train.threads", "4", ""},
    {"max_time, time_limit, max_train_time", "train.time_limit_s", "3600", "It is in seconds."},
    {"logging_steps, log_interval, log_freq, log_every_n_steps, logging_interval",
     "train.log_every", "10", ""},

    // Validation and checkpoints.
    {"eval_steps, eval_interval, eval_every, eval_freq, evaluation_steps, val_interval, "
     "val_check_interval, eval.steps, eval.interval",
     "eval.every", "500", "It is a number of steps."},
    {"eval_iters, eval_batches, val_batches, max_eval_samples, limit_val_batches", "eval.windows",
     "100", "It is a number of rows of data.seq_len tokens."},
    {"save_steps, save_every, save_interval, save_freq, checkpoint_interval, checkpoint_every, "
     "ckpt_interval, ckpt.steps, ckpt.interval",
     "ckpt.every", "500", "It is a number of steps."},
    {"save_total_limit, max_to_keep, keep_checkpoints, keep_last_n", "ckpt.keep_last", "2", ""},
    {"early_stopping, early_stopping_patience, patience", "train.patience", "3",
     "It is a number of validations without a new best one."},
    {"load_best_model_at_end", "ckpt.keep_best", "\"val_loss\"",
     "RUN@best is the best checkpoint of a run."},

    // Data.
    {"seq_length, seqlen, sequence_length, max_seq_len, max_seq_length, max_length, "
     "context_length, context_len, context_size, ctx_len, n_ctx, block_size",
     "data.seq_len", "512", ""},
    {"num_workers, dataloader_num_workers, prefetch_factor", "data.prefetch", "4",
     "A thread of each rank reads that many micro-batches ahead."},
    {"data_path, data_dir, dataset_path, dataset_name, dataset_dir, train_data, train_file",
     "data.path", "\"datasets/mine\"", "It is a folder that `halflife prepare` made."},

    // Model.
    {"hidden_size, hidden_dim, d_model, n_embd, n_embed, embed_dim, embedding_dim, emb_dim, dim",
     "model.model_dim", "256", ""},
    {"num_hidden_layers, n_layer, n_layers, num_blocks, depth, model.layers", "model.num_layers",
     "6", ""},
    {"num_attention_heads, n_head, n_heads, heads", "model.mixer.gla.num_heads", "4",
     "It is an option of the mixer: put the name of your mixer in the place of gla."},
    {"num_key_value_heads, n_kv_head, n_kv_heads", "model.mixer.gla.num_kv_heads", "2",
     "It is an option of the mixer: put the name of your mixer in the place of gla."},
    {"attention, attn, attn_mode, attn_type, attention_type, mixer_type, sequence_mixer, "
     "token_mixer",
     "model.mixer", "{ gla {} }", "`halflife mixers` lists the mixers."},
    {"model.mixer.attention, self_attention, full_attention, mha, gqa, multi_head_attention, "
     "transformer",
     "model.mixer", "{ softmax {} }", ""},
    {"mamba_2, ssd", "model.mixer", "{ mamba2 {} }", ""},
    {"deltanet, delta_rule", "model.mixer", "{ delta_net {} }", ""},
    {"gated_deltanet, gdn", "model.mixer", "{ gated_delta_net {} }", ""},
    {"gated_deltaproduct, deltaproduct", "model.mixer", "{ gated_delta_product {} }", ""},
    {"kimi_delta_attention", "model.mixer", "{ kda {} }", ""},
    {"multi_head_latent_attention", "model.mixer", "{ mla {} }", ""},
    {"gated_slot_attention", "model.mixer", "{ gsa {} }", ""},
    {"lightning_attention", "model.mixer", "{ lightning {} }", ""},
    {"ffn, feed_forward, state_mixer, mlp_type", "model.channel_mixer", "{ swiglu {} }", ""},
    {"intermediate_size, ffn_dim, ffn_hidden_size, mlp_hidden_size, d_ff, d_ffn, n_inner, "
     "hidden_ratio",
     "model.channel_mixer.swiglu.width", "1024", ""},
    {"hidden_act, activation_function, act_fn", "model.channel_mixer.glu.activation", "\"gelu\"",
     ""},
    {"tie_word_embeddings, tied_embeddings, tie_weights, weight_tying, share_embeddings",
     "model.head.tied", "true", ""},
    {"rms_norm_eps, layer_norm_eps, layer_norm_epsilon, layernorm_epsilon",
     "model.norm.rms_norm.eps", "1e-6", ""},
    {"max_position_embeddings, n_positions", "model.positions.learned.max_positions", "1024",
     "Only learned positions have a table of a fixed length."},
    {"rope_base, rotary_base, rotary_emb_base", "model.mixer.softmax.rope_theta", "10000", ""},
    {"rope_scaling", "model.positions", "{ yarn { factor: 4 length: 1024 } }", ""},
    {"hidden_dropout, hidden_dropout_prob, resid_pdrop, resid_dropout, embd_pdrop", "model.dropout",
     "0.1", ""},
    {"attention_dropout, attn_pdrop, attn_dropout", "model.mixer.softmax.dropout", "0.1", ""},
    {"init_std, initializer_std, init_method_std", "model.initializer_range", "0.02", ""},
    {"sliding_window, window_size", "model.mixer.softmax.window", "256", ""},
    {"qk_layernorm, use_qk_norm", "model.mixer.softmax.qk_norm", "true", ""},
    {"model.mixer.mamba2.ssm_state_size, model.mixer.mamba2.d_state",
     "model.mixer.mamba2.state_size", "128", ""},
    {"model.mixer.mamba2.n_groups, model.mixer.mamba2.ngroups", "model.mixer.mamba2.num_groups",
     "1", ""},
    {"model.mixer.mamba2.d_conv", "model.mixer.mamba2.conv_kernel", "4", ""},
    {"model.mixer.mamba2.headdim", "model.mixer.mamba2.head_dim", "64", ""},
    {"state_size, ssm_state_size", "model.mixer.mamba.d_state", "16", ""},
    {"mlm_probability, mask_prob", "model.objective.masked_token.rate", "0.15", ""},

    // Ranks.
    {"zero, zero_optimization, sharding_strategy, use_distributed_optimizer", "parallel.zero_stage",
     "1",
     "Stage 1 shares the optimizer's state among ranks, stage 2 the gradients too, stage 3 also "
     "the "
     "weights."},
    {"fsdp, fsdp2, fully_shard", "parallel.zero_stage", "3",
     "Stage 3 shares weights, gradients and the optimizer's state among ranks."},
    {"hsdp, hybrid_shard, shard_size, sharding_group_size", "parallel.shard", "\"node\"",
     "It is the number of ranks that share gradients and weights, or node or world."},
    {"context_parallel, context_parallel_size, sequence_parallel, cp, cp_size, sp_size, "
     "ulysses_size, ring_attention",
     "parallel.sp", "2", "It is the number of ranks that share a row."},
    {"data_parallel, data_parallel_size, dp, dp_size, ddp, world_size, num_gpus, n_gpus, "
     "gpus_per_node, num_nodes, nproc_per_node, devices",
     "train --local-ranks", "2",
     "These ranks are threads on a CPU. With mpirun or Slurm the launcher decides the number of "
     "ranks."},
    {"ddp_timeout, nccl_timeout", "comm.timeout_s", "180", "It is in seconds."},

    // Low-rank adaptation.
    {"lora_r, lora_rank, lora_dim, lora.r", "lora.rank", "8", ""},
    {"lora_alpha", "lora.alpha", "16", "The update of a matrix has the factor alpha / rank."},
    {"target_modules, lora_target, lora_target_modules", "lora.targets", "\".*[qv]_proj.weight\"",
     "It is a regular expression for whole names of weights. Empty: all matrices of layers."},

    // Preferences.
    {"dpo, preference_loss", "train.preference.loss", "\"dpo\"",
     "The dataset has pairs of answers (`halflife prepare --labels preferences`)."},
    {"dpo_beta, preference_beta", "train.preference.beta", "0.1", ""},

    // Blocks.
    {"training, trainer, training_args", "train", "{ steps: 1000 }", ""},
    {"dataset, datasets, dataloader", "data", "{ path: \"datasets/mine\" }", ""},
    {"checkpoint, checkpoints, checkpointing", "ckpt", "{ every: 500 }", ""},
    {"evaluation, validation, val", "eval", "{ every: 500 }", ""},
    {"logging, logger", "log", "{ level: \"info\" }", ""},
    {"distributed", "parallel", "{ zero_stage: 1 }", ""},

    // Options of the command line.
    {"output_dir, output_path, save_dir, checkpoint_dir, ckpt_dir, log_dir, work_dir, run_name, "
     "experiment_name, exp_name",
     "train --run", "runs/first", "A recipe does not name the folder of its run."},
    {"resume, resume_from, resume_from_checkpoint, load_checkpoint", "train --resume", "auto",
     "It is the default: the same command continues a run."},
    {"pretrained, init_from, model_name_or_path, pretrained_model_name_or_path",
     "train --init-from", "runs/base", ""},
    {"tokenizer, tokenizer_name, tokenizer_path, tokenizer_type", "prepare --tokenizer", "bytes",
     "A dataset contains its tokenizer."},

    // Mixers that do not exist.
    {"rwkv5, rwkv6", "", "", "Use the mixer rwkv7."},
    {"simple_gla, mlstm, xlstm", "", "", "Use the mixer gla."},
    {"hgrn", "", "", "Use the mixer hgrn2."},
    {"ttt, titans, log_linear_attention", "", "", "Use the mixer gla or mamba."},
    {"s4, s4d, s5, h3, lru, rg_lru, griffin", "", "", "Use the mixer mamba or hyena."},
    {"performer, linformer, cosformer", "", "", "Use the mixer linear_attention."},
    {"nsa, moba, sparse_attention", "", "",
     "Use the mixer softmax with num_kv_heads, window, block or sinks."},

    // Optimizers that do not exist.
    {"lion, adafactor, sophia, shampoo, soap, lamb, sgd, adamw_8bit, adam8bit, "
     "schedule_free",
     "", "", "Use AdamW, which is the default, or optimizer { algorithm { muon {} } }."},
    {"label_smoothing, label_smoothing_factor", "", "",
     "Use train.z_loss to limit the size of the logits."},

    // Other ways of training.
    {"qlora, dora, peft, adapter", "", "",
     "Use lora { rank: 8 } with `halflife train --init-from RUN`."},
    {"lora_dropout, lora.dropout", "", "",
     "Use fewer steps or a lower lora.rank: the layers compute with the sum of W and B A, so A has "
     "no input of its own."},
    {"ppo, grpo, rlhf, reward_model", "", "",
     "Use train.preference.loss \"dpo\" with pairs of answers (`halflife prepare --labels "
     "preferences`)."},
    {"moe, mixture_of_experts, num_experts, num_local_experts, n_routed_experts", "", "",
     "Use a dense channel mixer: swiglu, glu or mlp."},
    {"int8, int4, quantization, load_in_8bit, load_in_4bit", "", "",
     "Use train.precision \"bf16\"."},
    {"streaming, streaming_dataset, hf_dataset, load_dataset", "", "",
     "Use `halflife prepare`, which writes a dataset folder from text or JSON lines."},

    // Ranks and speed.
    {"deepspeed, megatron, accelerate", "", "",
     "Use parallel.zero_stage 1, 2 or 3, and start the ranks with mpirun or Slurm."},
    {"tensor_parallel, tensor_parallel_size, tensor_model_parallel_size, tp, tp_size", "", "",
     "Use parallel.zero_stage 3 to share the weights, and parallel.sp to share rows."},
    {"pipeline_parallel, pipeline_parallel_size, pipeline_model_parallel_size, pp, pp_size", "", "",
     "Use parallel.zero_stage 3 to share the weights, and train.recompute to save memory."},
    {"expert_parallel, expert_parallel_size, ep, ep_size", "", "",
     "Use a dense channel mixer: swiglu, glu or mlp."},
    {"offload, cpu_offload, offload_optimizer", "", "",
     "Use parallel.zero_stage 3 and train.recompute to save memory."},
    {"flash_attention, flash_attn, use_flash_attn, attn_implementation, sdpa, xformers", "", "",
     "Set nothing: the mixer softmax chooses its kernel itself."},
    {"compile, torch_compile, use_compile", "", "",
     "Set nothing: the kernels are compiled with the program. train.cuda_graphs removes launch "
     "costs of small models."},

    // Trackers.
    {"wandb, wandb_project, wandb_run_name, weights_and_biases, mlflow, comet, clearml, neptune, "
     "swanlab, trackio, report_to",
     "", "",
     "Send the run's metrics.jsonl to a tracker with the script in docs/inspect.md#metrics. "
     "TensorBoard events and the page that `halflife report` writes need no tracker."},
};

std::string Lowered(std::string text) {
  for (char& c : text)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::vector<std::string> ForeignName::Names() const {
  constexpr std::string_view kSeparator = ", ";
  std::vector<std::string> parts;
  std::string_view rest = names;
  while (true) {
    const size_t end = rest.find(kSeparator);
    parts.emplace_back(rest.substr(0, end));
    if (end == std::string_view::npos) return parts;
    rest.remove_prefix(end + kSeparator.size());
  }
}

std::span<const ForeignName> ForeignNames() { return kForeignNames; }

const ForeignName* FindForeignName(const std::string& block, const std::string& name) {
  const std::string plain = Lowered(name);
  const ForeignName* found = nullptr;
  for (const ForeignName& foreign : kForeignNames) {
    for (const std::string& candidate : foreign.Names()) {
      if (candidate == Concat(block, ".", plain)) return &foreign;
      if (candidate == plain) found = &foreign;
    }
  }
  return found;
}

std::string AnswerTo(const ForeignName& foreign, RecipeForm form) {
  const std::string place = foreign.place;
  std::string text = Concat("Use ", WrittenField(place, foreign.example, form), ".");
  if (foreign.is_missing()) text = "halflife does not support it.";
  if (place.find(" --") != std::string::npos)
    text = Concat("Use `halflife ", place, " ", foreign.example, "`.");
  return *foreign.advice == '\0' ? text : Concat(text, " ", foreign.advice);
}

std::string WrittenField(const std::string& path, const std::string& value, RecipeForm form) {
  const bool is_block = value.starts_with("{");
  if (form == RecipeForm::kSet) {
    if (is_block) return Concat("--set '", path, "=", value, "'");
    const bool quoted = value.size() >= 2 && value.front() == '"';
    return Concat("--set ", path, "=", quoted ? value.substr(1, value.size() - 2) : value);
  }
  std::string text;
  for (const char c : path) text += c == '.' ? std::string(" { ") : std::string(1, c);
  text += Concat(is_block ? " " : ": ", value);
  for (auto dots = std::ranges::count(path, '.'); dots > 0; --dots) text += " }";
  return text;
}

}  // namespace halflife::train
