// The subcommands that apply a model to text: generate and score.
#include "cli/command_line/declare.h"

namespace halflife::cli {

// halflife generate: continues a prompt and streams the text.
void AddGenerate(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<GenerateOptions>(
      app, request, "generate", "Continue a prompt",
      {.notes =
           "The text is written to stdout while it is generated, and --stats to stderr. A model "
           "with a limited number of positions stops at the limit, with a warning. An eos "
           "token in the prompt does not reset the state. Ctrl-C ends the "
           "command by the signal, which a shell reports as 130.",
       .examples = {"halflife generate --model runs/first --prompt 'In the beginning' "
                    "--max-tokens 300 --temperature 0.8 --top-p 0.95 --stats"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNonFinite,
                      ExitCode::kNoUsableCheckpoint, ExitCode::kInterrupted}});
  infer::GenerateConfig& generate = options.generate;
  OptionDeclarer declare(command);
  declare.Required("--model RUN", options.model, kModelHelp);
  declare.Required("--prompt", options.prompt, "The text to continue; - is standard input");
  AddTokenizer(declare, options.tokenizer, "the model's");
  AddSpecialTokens(declare, options.special_tokens, "the prompt");
  AddCompute(declare, options.compute);
  declare("--threads", options.threads, "LibTorch threads", NumThreads(1));
  declare.Flag("--stats", options.stats, "Print tokens/s and the size of the state");
  command.add_flag_callback(
      "--no-cuda-graph", [&generate] { generate.decoder.use_graph = false; },
      "On a GPU, launch the kernels of each token one by one");

  declare.BeginGroup("Length");
  declare("--max-tokens", generate.max_tokens, "Maximum number of new tokens", AtLeast(0));
  declare.Flag("--ignore-eos", options.ignore_eos, "Continue after the end of a document");

  declare.BeginGroup("Sampling");
  declare("--temperature", generate.sampler.temperature,
          "Divisor of the logits; 0: always the most likely token");
  declare("--top-k", generate.sampler.top_k, "Sample from the k most likely tokens; 0: all tokens");
  declare("--top-p", generate.sampler.top_p,
          "Sample from the fewest tokens whose total probability reaches p; 1: all tokens");
  declare("--seed", generate.sampler.seed,
          "Seed of the sampling. The same seed gives the same text", AtLeast(0));
}

// halflife score: writes log-probabilities of given tokens or texts.
void AddScore(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<ScoreOptions>(
      app, request, "score", "Write log-probabilities of given tokens or texts",
      {.notes =
           "Writes one line per sequence: {\"ids\":[...],\"logprobs\":[...]} with logprobs[i] = ln "
           "p(ids[i+1] | ids[..i]) in fp32, or null if that is not finite. Prints the mean, for "
           "--text also in bits per byte (the first token of a text is not scored and counts as "
           "an average one). For a masked language model, the value is ln p(ids[i+1] | all other "
           "ids), with each token masked in a separate row. Under mpirun, the ranks share the "
           "sequences. An eos token inside a sequence does not reset the state. Ctrl-C ends the "
           "command by the signal, which a shell reports as 130, and --out is not written.",
       .examples = {"halflife score --model runs/first --text chapter.txt --out chapter.jsonl"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNoUsableCheckpoint,
                      ExitCode::kInterrupted}});
  OptionDeclarer declare(command);
  declare.Required("--model RUN", options.model, kModelHelp);
  declare("--tokens FILE", options.tokens,
          "JSON file with a list of lists of token ids. It may be a pipe; - is standard input "
          "[none]");
  CLI::Option* const text =
      declare("--text FILE", options.texts, "Text files, each one sequence; - is standard input");
  Exclude(command, "--tokens", {"--text"});
  declare.Required("--out FILE", options.out, "The JSONL file to write; - is standard output");
  AddTokenizer(declare, options.tokenizer, "the model's");
  AddSpecialTokens(declare, options.special_tokens, "--text");
  for (const char* name : {"--tokenizer", "--special-tokens"})
    command.get_option(name)->needs(text);
  declare("--piece", options.score.piece, "Tokens of a sequence per forward pass", AtLeast(1));
  declare("--batch-tokens", options.score.batch_tokens, "Tokens per forward pass", AtLeast(1));
  AddCompute(declare, options.compute);
  declare("--threads", options.threads, "LibTorch threads per rank [all cores]", NumThreads(0));
}

}  // namespace halflife::cli
