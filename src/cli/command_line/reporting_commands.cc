// The subcommands that only report: recipe, mixers, inspect, report and doctor.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"

namespace halflife::cli {

// halflife recipe: prints a recipe with every option in effect, or with all options.
void AddRecipe(CLI::App& app, Request& request) {
  auto options = std::make_shared<RecipeOptions>();
  CLI::App* command = app.add_subcommand("recipe", "Print a recipe with every option in effect");
  DescribeUse(
      *command,
      {.notes =
           "Without --config, prints every option of a run with its default, for the model parts "
           "(mixers, norms, ...) in use. For other parts, see `halflife mixers NAME`. The "
           "output is a recipe. A vocabulary of 0 means the dataset's.",
       .examples = {"halflife recipe --explain", "halflife recipe --set model.mixer=gla",
                    "halflife recipe --config launch/recipes/gla_340m.textproto",
                    "halflife recipe --config launch/recipes/gla_340m.textproto --config "
                    "changes.textproto"}});
  command
      ->add_option(
          "--config", options->configs,
          "The recipe. May be repeated: later files override fields of earlier ones, and the "
          "merged recipe is printed [none]")
      ->type_name("RECIPE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command
      ->add_option("--set", options->overrides,
                   "Override a field of the recipe, e.g. optimizer.lr=3e-4; may be repeated")
      ->type_name("NAME=VALUE")
      ->take_all();
  command->add_flag("--explain", options->explain, "Add the meaning of every option as a comment");
  command->callback([=, &request] { request = *options; });
}

// halflife mixers: lists the mixers and the other parts of a model.
void AddMixers(CLI::App& app, Request& request) {
  auto options = std::make_shared<MixersOptions>();
  CLI::App* command = app.add_subcommand("mixers", "List the mixers and other parts of a model");
  DescribeUse(
      *command,
      {.notes = "With the NAME of a mixer or another part, such as channel_mixer.glu, prints "
                "its equation, its cost in a model of model_dim 1024, its state per row, "
                "and every option with type, default and meaning.",
       .examples = {"halflife mixers", "halflife mixers gla",
                    "halflife mixers channel_mixer.glu --json"}});
  command
      ->add_option("NAME", options->name,
                   "Name of a mixer, or KIND.NAME of another part [list all]")
      ->type_name("NAME");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([=, &request] { request = *options; });
}

namespace {

// halflife inspect: identifies a path and shows its contents.
struct Form {
  const char* kind;
  const char* form;
};
constexpr Form kForms[] = {
#define HL_ARTIFACT(kind, form, ...) {kind, form},
#include "cli/inspect/artifacts.inc"
#undef HL_ARTIFACT
};

// Returns "It knows: run (a run's folder ...), ...".
std::string KnownForms() {
  std::string forms = "It knows: ";
  for (const Form& row : kForms) forms += std::string(row.kind) + " (" + row.form + "), ";
  forms.replace(forms.size() - 2, 2, ".");
  return forms + " The keys of --json are in docs/inspect.md.";
}

}  // namespace

void AddInspect(CLI::App& app, Request& request) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      app.add_subcommand("inspect", "Identify a file or folder and show its contents");
  DescribeUse(*command, {.notes = KnownForms(),
                         .examples = {"halflife inspect runs/first",
                                      "halflife inspect --json launch/recipes/gla_340m.textproto"},
                         .exit_codes = {ExitCode::kData, ExitCode::kCheckpointIo,
                                        ExitCode::kNoUsableCheckpoint}});
  command->add_option("PATH", options->path, "A file or folder")->type_name("PATH")->required();
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([=, &request] { request = *options; });
}

// halflife report: writes one HTML page about sweeps, runs and evaluations.
void AddReport(CLI::App& app, Request& request) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command =
      app.add_subcommand("report", "Write one HTML page about sweeps, runs and evaluations");
  DescribeUse(
      *command,
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
  command
      ->add_option("RUN", options->runs,
                   "Folders of sweeps and of runs, finished or not, and files of `eval --out`")
      ->type_name("RUN")
      ->required();
  command
      ->add_option("--out", options->out,
                   "The page (or picture, .svg) to write; - is standard output")
      ->type_name("FILE")
      ->required();
  command->callback([=, &request] { request = *options; });
}

// halflife doctor: reports the capabilities of this machine, and the commands that fix problems.
void AddDoctor(CLI::App& app, Request& request) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand("doctor", "Check this machine and suggest fixes");
  DescribeUse(
      *command,
      {.notes =
           "Checks libraries, GPUs, cores, limits, network and disk. Each is OK, WARN or FAIL, "
           "with the command that fixes it. Writes at most 512 MiB below --run and deletes "
           "it. Under mpirun, the ranks sum tensors for 5 s. The exit code is 4 if anything "
           "is FAIL. Before the build, launch/setup --check checks the build dependencies.",
       .examples = {"halflife doctor", "halflife doctor --run /scratch/runs --json",
                    "launch/mpirun/run.sh --ranks 2 -- halflife doctor"},
       .exit_codes = {ExitCode::kEnvironment, ExitCode::kTimeout, ExitCode::kPeerLost}});
  command->add_option("--run", options->run, "The folder in which runs will be written")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_flag("--quick", options->quick, "Skip the disk and all-reduce tests");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
