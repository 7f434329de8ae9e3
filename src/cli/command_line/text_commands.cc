// The subcommands that apply a model to text: generate, serve and score.
#include "cli/command_line/declare.h"

namespace halflife::cli {

void AddChatTemplate(OptionDeclarer& declare, std::string& name) {
  declare("--chat-template", name,
          "Template of chats [the tokenizer's, if it is one of these; else chatml]",
          OneOf({"chatml", "llama3", "qwen", "mistral", "zephyr"}));
}

// halflife generate: continues a prompt and streams the text.
void AddGenerate(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<GenerateOptions>(
      app, request, "generate", "Continue a prompt",
      {.notes =
           "The text is written to stdout while it is generated, and --stats to stderr. A model "
           "with a limited number of positions stops at the limit, with a warning. An eos "
           "token in the prompt does not reset the state. Ctrl-C ends the "
           "command by the signal, which a shell reports as 130. With --prompts, the texts are "
           "written as JSON lines in the order of the file, and a text does not depend on the "
           "other prompts or on --batch (equal bits on a CPU). With --chat, each line of standard "
           "input is a message of the user, and the answers see the whole conversation.",
       .examples = {"halflife generate --model runs/first --prompt 'In the beginning' "
                    "--max-tokens 300 --temperature 0.8 --top-p 0.95 --stats",
                    "halflife generate --model runs/first --prompts questions.jsonl --batch 16 "
                    "--stop '\\n' > answers.jsonl",
                    "halflife generate --model runs/chat --chat"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNonFinite,
                      ExitCode::kNoUsableCheckpoint, ExitCode::kInterrupted}});
  infer::GenerateConfig& generate = options.generate;
  OptionDeclarer declare(command);
  declare.Required("--model RUN", options.model, kModelHelp);
  AddWeights(declare, options.weights);
  declare("--prompt", options.prompt, "The text to continue; - is standard input [none]");
  CLI::Option* const prompts =
      declare("--prompts FILE", options.prompts,
              "JSONL file with the texts to continue: strings, or objects with \"prompt\" (with "
              "--chat: lists of messages, or objects with \"messages\"); - is standard input "
              "[none]");
  declare("--batch", options.batch, "Number of texts that are continued at a time",
          Between(1, 4096))
      ->needs(prompts);
  Exclude(command, "--prompt", {"--prompts"});
  AddTokenizer(declare, options.tokenizer, "the model's");
  AddSpecialTokens(declare, options.special_tokens, "the prompt");
  AddCompute(declare, options.compute);
  declare("--threads", options.threads, "LibTorch threads", NumThreads(1));
  declare.Flag("--json", options.json,
               "Print an object with prompt, text, finish_reason, prompt_tokens and new_tokens. "
               "--prompts always does");
  declare.Flag("--stats", options.stats, "Print tokens/s and the size of the state");
  command.add_flag_callback(
      "--no-cuda-graph", [&generate] { generate.decoder.use_graph = false; },
      "On a GPU, launch the kernels of each token one by one");

  declare.BeginGroup("Chat");
  CLI::Option* const chat = declare.Flag(
      "--chat", options.chat,
      "Answer messages by a chat template: those of --prompts, --prompt as one message, or those "
      "that are typed");
  AddChatTemplate(declare, options.chat_template);
  declare("--system TEXT", options.system,
          "System message of conversations that do not begin with one [none]");
  for (const char* name : {"--chat-template", "--system"}) command.get_option(name)->needs(chat);
  Exclude(command, "--chat", {"--special-tokens", "--no-cuda-graph"});
  Exclude(command, "--prompts", {"--no-cuda-graph"});  // Texts in batches have no graph.

  declare.BeginGroup("Length");
  declare("--max-tokens", generate.max_tokens, "Maximum number of new tokens", AtLeast(0));
  declare.Flag("--ignore-eos", options.ignore_eos, "Continue after the end of a document");
  declare("--stop TEXT", options.stops,
          "End before this text. \\n and \\t are a line break and a tab; may be repeated [none]")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();

  declare.BeginGroup("Sampling");
  declare("--temperature", generate.sampler.temperature,
          "Divisor of the logits; 0: always the most likely token");
  declare("--top-k", generate.sampler.top_k, "Sample from the k most likely tokens; 0: all tokens");
  declare("--top-p", generate.sampler.top_p,
          "Sample from the fewest tokens whose total probability reaches p; 1: all tokens");
  declare("--repetition-penalty", generate.sampler.repetition_penalty,
          "Divisor of the positive logits of tokens that the text contains, and factor of their "
          "negative ones; 1: off");
  declare("--seed", generate.sampler.seed,
          "Seed of the sampling. The same seed gives the same text", AtLeast(0));
  declare("--samples", options.samples,
          "Number of texts per prompt; text i has the seed plus i. Texts of --prompt are separated "
          "by a line ---",
          AtLeast(1));
}

// halflife serve: answers requests over HTTP.
void AddServe(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<ServeOptions>(
      app, request, "serve", "Answer requests in OpenAI's form over HTTP",
      {.notes =
           "Answers /v1/completions, /v1/chat/completions, /v1/models, /tokenize, /detokenize, "
           "/tokenizer_info, /health and /metrics (docs/serving.md). There is no encryption and no "
           "password: an address other than the default is open to everyone who reaches it. "
           "SIGTERM and Ctrl-C refuse new requests and end the command when the running ones are "
           "answered. A second Ctrl-C, or a signal more than a second after the first one, ends it "
           "at once.",
       .examples = {"halflife serve --model runs/first --port 8080"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNonFinite,
                      ExitCode::kNoUsableCheckpoint}});
  serve::ServerConfig& server = options.server;
  OptionDeclarer declare(command);
  declare.Required("--model RUN", options.model, kModelHelp);
  AddTokenizer(declare, options.tokenizer, "the model's");
  declare("--name", server.model_name, "Name of the model in requests [the folder's name]");
  AddChatTemplate(declare, options.chat_template);
  declare("--host", options.host, "Address to listen at. 0.0.0.0: every address of this machine");
  declare("--port", options.port, "Port to listen at; 0: any free one, which the log names",
          Between(0, 65535));
  AddCompute(declare, options.compute);
  declare("--threads", options.threads, "LibTorch threads", NumThreads(1));

  declare.BeginGroup("Batches");
  declare("--batch", server.engine.batch.max_texts, "Number of texts that are continued at a time",
          Between(1, 4096));
  declare("--queue", server.engine.max_queued,
          "Number of texts that wait. Further requests are answered with 429", Between(1, 1 << 20));
  declare("--prefix-memory SIZE", server.engine.batch.prefix.max_bytes,
          "Memory for the states of prompts' beginnings, e.g. 4GB; 0: keep none", SizeInBytes());
  declare("--prefill-chunk", server.engine.batch.prefix.chunk,
          "Prompt tokens per forward pass. Between two, all other texts advance by one token",
          Between(1, 1 << 20));

  declare.BeginGroup("Limits of a request");
  declare("--max-prompt-tokens", server.max_prompt_tokens, "Tokens of a prompt", AtLeast(1));
  declare("--max-new-tokens", server.max_new_tokens, "New tokens of a text", AtLeast(1));
  declare("--max-body SIZE", server.max_body_bytes, "Size of a request", SizeInBytes());
  declare("--max-connections", server.max_connections,
          "Connections that are served at a time; further ones wait", Between(1, 4096));
  declare("--request-seconds", server.request_seconds, "Seconds until an answer is complete",
          BetweenNumbers(0.1, 1e6));
  declare("--receive-seconds", server.receive_seconds, "Seconds for a client to send a request",
          BetweenNumbers(0.1, 1e6));
  declare("--drain-seconds", server.drain_seconds,
          "Seconds for running requests after SIGTERM or Ctrl-C", BetweenNumbers(0, 1e6));
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
  AddWeights(declare, options.weights);
  declare("--tokens FILE", options.tokens,
          "JSON file with a list of lists of token ids. It may be a pipe; - is standard input "
          "[none]");
  CLI::Option* const text =
      declare("--text FILE", options.texts, "Text files, each one sequence; - is standard input");
  Exclude(command, "--tokens", {"--text"});
  declare("--out FILE", options.out, "The JSONL file to write; - is standard output");
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
