// The subcommands that only report: recipe, mixers, inspect, report and doctor.
#include "cli/command_line/declare.h"

namespace halflife::cli {

// halflife recipe: prints a recipe with every option in effect, or with all options.
void AddRecipe(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<RecipeOptions>(
      app, request, "recipe", "Print a recipe with every option in effect",
      {.notes =
           "Without --config, prints every option of a run with its default, for the model parts "
           "(mixers, norms, ...) in use. For other parts, see `halflife mixers NAME`. The "
           "output is a recipe. A vocabulary of 0 means the dataset's.",
       .examples = {"halflife recipe --explain", "halflife recipe --set model.mixer=gla",
                    "halflife recipe --config launch/recipes/gla_340m.textproto",
                    "halflife recipe --config launch/recipes/gla_340m.textproto --config "
                    "changes.textproto"},
       .exit_codes = {}});
  OptionDeclarer declare(command);
  declare("--config RECIPE", options.configs,
          "The recipe. May be repeated: later files override fields of earlier ones, and the "
          "merged recipe is printed [none]")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  declare("--set NAME=VALUE", options.overrides,
          "Override a field of the recipe, e.g. optimizer.lr=3e-4; may be repeated")
      ->take_all();
  declare.Flag("--explain", options.explain, "Add the meaning of every option as a comment");
}

// halflife mixers: lists the mixers and the other parts of a model.
void AddMixers(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<MixersOptions>(
      app, request, "mixers", "List the mixers and other parts of a model",
      {.notes = "With the NAME of a mixer or another part, such as channel_mixer.glu, prints "
                "its equation, its cost in a model of model_dim 1024, its state per row, "
                "and every option with type, default and meaning.",
       .examples = {"halflife mixers", "halflife mixers gla",
                    "halflife mixers channel_mixer.glu --json"},
       .exit_codes = {}});
  OptionDeclarer declare(command);
  declare("NAME", options.name, "Name of a mixer, or KIND.NAME of another part [list all]");
  declare.Flag("--json", options.json, "Print JSON");
}

namespace {

// Returns "It knows: run (a run's folder ...), ...".
std::string KnownForms() {
  const std::vector<std::string> forms = {
#define HL_ARTIFACT(kind, form, ...) Concat(kind, " (", form, ")"),
#include "cli/inspect/artifacts.inc"
#undef HL_ARTIFACT
  };
  return Concat("It knows: ", Join(forms, ", "), ". The keys of --json are in docs/inspect.md.");
}

}  // namespace

// halflife inspect: identifies a path and shows its contents.
void AddInspect(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<InspectOptions>(
      app, request, "inspect", "Identify a file or folder and show its contents",
      {.notes = KnownForms(),
       .examples = {"halflife inspect runs/first", "halflife inspect runs/first --samples 3",
                    "halflife inspect --json launch/recipes/gla_340m.textproto"},
       .exit_codes = {ExitCode::kData, ExitCode::kCheckpointIo, ExitCode::kNoUsableCheckpoint}});
  OptionDeclarer declare(command);
  declare.Required("PATH", options.path, "A file or folder");
  declare("--samples", options.samples,
          "Instead, print this many training rows of a run, recipe or dataset, in the order of "
          "training: text, labels, and the source in a blend [none]",
          AtLeast(1));
  declare.Flag("--json", options.json, "Print JSON");
}

// halflife report: writes one HTML page about sweeps, runs and evaluations.
void AddReport(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<ReportOptions>(
      app, request, "report", "Write one HTML page about sweeps, runs and evaluations",
      {.notes =
           "Accepts folders of sweeps and runs, and files of `halflife eval --lengths N,... --out "
           "FILE`, together. For a sweep, the page shows its metric over each axis, its tables "
           "with links to the runs, and the curves of its best runs. Runs are compared. "
           "Evaluations by length share one picture. Unfinished runs are shown up to their "
           "newest step. Other paths are skipped with a warning. The page is self-contained. "
           "With --out FILE.svg, only the picture of evaluations is written.",
       .examples = {"halflife report runs/gla runs/retention --out report.html",
                    "halflife report sweeps/lr runs/gla lengths/gla.json --out report.html",
                    "halflife report lengths/gla.json lengths/rope.json --out lengths.svg"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment}});
  OptionDeclarer declare(command);
  declare.Required("RUN", options.runs,
                   "Folders of sweeps and of runs, finished or not, and files of `eval --out`");
  declare.Required("--out FILE", options.out,
                   "The page (or picture, .svg) to write; - is standard output");
}

// halflife doctor: reports the capabilities of this machine, and the commands that fix problems.
void AddDoctor(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<DoctorOptions>(
      app, request, "doctor", "Check this machine and suggest fixes",
      {.notes =
           "Checks libraries, GPUs, cores, limits, network and disk. Each is OK, WARN or FAIL, "
           "with the command that fixes it. Writes at most 512 MiB below --run and deletes "
           "it. Under mpirun, the ranks sum tensors for 5 s. The exit code is 4 if anything "
           "is FAIL. Before the build, launch/setup --check checks the build dependencies.",
       .examples = {"halflife doctor", "halflife doctor --run /scratch/runs --json",
                    "launch/mpirun/run.sh --ranks 2 -- halflife doctor"},
       .exit_codes = {ExitCode::kEnvironment, ExitCode::kTimeout, ExitCode::kPeerLost}});
  OptionDeclarer declare(command);
  declare("--run DIR", options.run, "The folder in which runs will be written");
  declare.Flag("--quick", options.quick, "Skip the disk and all-reduce tests");
  declare.Flag("--json", options.json, "Print JSON");
}

}  // namespace halflife::cli
