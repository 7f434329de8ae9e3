"""Bugs of the public code's kinds in what divides a step among ranks; MUTATIONS as in mixers.py."""

STEP = "src/train/step"

MUTATIONS = [
    ("ranks: the last label of a slice is lost", "src/eval/batch_tensors.cc",
     "const at::Tensor targets = parallel.TokensOf(Ids(batch.targets, batch, at::kCPU));",
     "const at::Tensor targets = parallel.TokensOf(Ids(batch.targets, batch, at::kCPU)).clone();\n"
     "  targets.select(1, -1).fill_(-1);",
     "step_test:*RanksThatShareRows*"),
    ("ranks: a mean of micro-batches' means", f"{STEP}/step.cc",
     "const double scale = 1.0 / (config_.train.global_batch * config_.data.seq_len);",
     "const double scale = static_cast<double>(config_.train.micro_batch) /\n"
     "                       (config_.train.global_batch * tensors.num_targets);",
     "step_test:*AShortStep*"),
    ("ranks: two buckets swapped on one of them", "src/dist/gradient_reducer.cc",
     "const Bucket& bucket = layout_.buckets()[index];",
     "const Bucket& bucket = layout_.buckets()[comm_.rank() == 1 && index < 2 ? 1 - index : index];",
     "step_test:*WorldSizeChangesNoBit*"),
    ("ranks: the normaliser of a state is not exchanged", "src/kernels/polynomial_attention/segments.cc",
     "state.values.size() > 1 ? state.values[1] :", "state.values.size() > 1 ? state.values[1] * 0 :",
     "sequence_parallel_test"),
    ("ranks: gradients are summed over ranks with rows of their own alone", f"{STEP}/step.cc",
     "dist::Communicator& sums = sums_ ? *sums_ : context.world();\n  if (!shares_)",
     "dist::Communicator& sums =\n"
     "      *context.world().Split(context.rank() % config.parallel.sp, 0, \"dp\").release();\n"
     "  if (!shares_)",
     "step_test:*RanksThatShareRows*"),
    ("ranks: samples in an order of the rank's own", "src/data/token_source.cc",
     "const uint64_t sample = order_.FirstSample(step) + row;",
     "const uint64_t sample = order_.FirstSample(step) + row + config_.dp_rank;",
     "step_test:*WorldSizeChangesNoBit*"),
    ("recompute: ranks talk again", "src/model/forward_pass.cc",
     "  taped->segment = std::move(segment);\n", "", "recompute_test:*gla*"),
    ("recompute: what arrived is kept as its reader changes it", "src/kernels/sequence/segment_tape.cc",
     "kept_ = received_.clone();", "kept_ = received_;", "segment_tape_test"),
    ("recompute: another run asks for less", "src/kernels/sequence/segment_tape.cc",
     "!recorded_ || next_ == entries_.size()", "true", "segment_tape_test"),
    ("recompute: a first run without gradients", "src/kernels/torch/autograd.cc",
     "const OwnGraph graph(inputs, forward);\n",
     "struct { Tensors outputs; } graph{forward(inputs)};\n", "recompute_test:*softmax*"),
    ("recompute: leaves get nothing", "src/kernels/torch/autograd.cc",
     "/*accumulate_grad=*/true", "/*accumulate_grad=*/false", "kernels_autograd_test"),
    ("recompute: dropout by its own count", "src/model/forward_pass.cc",
     "MakeRandomKey(context_.seed, RandomPurpose::kDropout, site)",
     "MakeRandomKey([] { static uint64_t n = 0; return ++n; }(), RandomPurpose::kDropout, site)",
     "recompute_test:*gla*"),
    ("recompute: every layer's work is held", "src/model/language_model.cc",
     "again = std::max(again, once);", "again += once;", "recompute_test:Recompute.*"),
    ("recompute: a step that keeps all", "src/train/step/step.cc",
     ".recompute = RecomputeOf(config_),", "", "step_test:*Recomputation*"),
]
