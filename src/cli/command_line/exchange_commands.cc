// The subcommands that exchange models with transformers: import and export.
#include "cli/command_line/declare.h"

namespace halflife::cli {
namespace {

struct Layout {
  const char* model_type;
  bool exports;  // Whether `export` can write it.
};
constexpr Layout kLayouts[] = {
#define HL_LAYOUT(Make, model_type, class_name, mixer, exports) {model_type, exports},
#include "interop/layouts/layouts.inc"
#undef HL_LAYOUT
};

std::vector<std::string> LayoutNames(bool exports) {
  std::vector<std::string> names;
  for (const Layout& layout : kLayouts)
    if (layout.exports == exports) names.emplace_back(layout.model_type);
  return names;
}

}  // namespace

// halflife import: converts a Hugging Face folder to a run, to evaluate it or to continue training.
void AddImport(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<ImportOptions>(
      app, request, "import", "Create a run from a folder that transformers saved",
      {.notes = "The run has a step 0. eval, score, generate and export accept it, and train "
                "continues from it with the config.textproto in the run's folder.",
       .examples = {"halflife import --from models/tiny-llama --out runs/tiny-llama",
                    "halflife import --from models/d2d --layout d2d --out runs/d2d"},
       .exit_codes = {ExitCode::kData, ExitCode::kNonFinite, ExitCode::kCheckpointIo}});
  OptionDeclarer declare(command);
  declare.Required("--from DIR", options.from,
                   "The folder with config.json, safetensors and tokenizer");
  declare.Required("--out DIR", options.out, "The run to create; it must not exist");
  std::vector<std::string> all;
  for (const Layout& layout : kLayouts) all.emplace_back(layout.model_type);
  declare(
      "--layout NAME", options.layout,
      Concat("Layout of the tensor names. Checkpoints of a paper's authors need it. Layouts that "
             "only `import` reads: ",
             Join(LayoutNames(/*exports=*/false), ", "), " [config.json's model_type]"),
      OneOf(all).description(""));  // The help does not list the layouts of `export`.
}

// halflife export: writes a checkpoint as a folder that transformers loads.
void AddExport(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<ExportOptions>(
      app, request, "export", "Write a checkpoint as a folder that transformers loads",
      {.notes =
           "Load it in Python with AutoModelForCausalLM.from_pretrained(\"exports/first\"), after "
           "`import fla` for the classes of flash-linear-attention.",
       .examples = {"halflife export --run runs/first --out exports/first --dtype bf16"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNonFinite,
                      ExitCode::kNoUsableCheckpoint}});
  OptionDeclarer declare(command);
  declare.Required("--run RUN", options.run,
                   "A run (its newest step), RUN@best or RUN@1200, or a step's folder");
  declare.Required("--out DIR", options.out, "The folder to create; it must not exist");
  AddWeights(declare, options.exported.weights);
  declare("--dtype", options.dtype,
          "Type of the tensors. bf16 keeps fp32 for A_log and dt_bias if it would change them",
          OneOf({"fp32", "bf16"}));
  std::vector<std::string> types = LayoutNames(/*exports=*/true);
  types.insert(types.begin(), "auto");
  declare(
      "--model-type NAME", options.exported.model_type,
      Concat("model_type of config.json, if several classes fit the model: ", Join(types, ", ")),
      OneOf(types).description(""));
  declare("--max-shard SIZE", options.exported.max_shard_bytes,
          "Maximum size of one file, for example 5GB", SizeInBytes())
      ->default_str("5GB");
  declare.Flag("--adapter", options.exported.adapter,
               "Of a run with lora.rank: write only the adapter, as peft saves it, instead of the "
               "merged model");
  declare.Flag("--untie", options.exported.untie,
               "Write the head of a tied model as a separate tensor");
  AddTokenizer(declare, options.tokenizer, "the run's");
}

}  // namespace halflife::cli
