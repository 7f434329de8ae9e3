// Which libraries this program was built with and runs with.
#include <google/protobuf/stubs/common.h>
#include <torch/version.h>

#include "cli/doctor/checks.h"
#include "cli/doctor/command_output.h"
#include "cli/doctor/system_files.h"
#include "core/error.h"
#include "data/hdf5_handles.h"
#include "data/sentencepiece_bridge.h"
#include "dist/library_versions.h"

namespace halflife::cli::doctor {
namespace {

struct Library {
  std::string name, built, loaded;  // loaded empty: what was built with is all that is known
  const char* file;                 // how the name of its shared library begins
  const char* remedy = "launch/setup, then build again";
};

Finding Judge(const Library& library, const std::string& maps) {
  const std::string path = FindMapped(maps, library.file);
  Finding finding{Verdict::kOk, library.name,
                  library.loaded.empty() ? library.built : library.loaded};
  if (!library.loaded.empty() && !library.built.empty() && library.loaded != library.built) {
    finding.verdict = Verdict::kWarn;
    finding.text += Concat(" runs, ", library.built, " was built with");
    finding.remedy = library.remedy;
  }
  if (!path.empty()) finding.text += Concat(", ", path);
  return finding;
}

Finding Compiler() {
#ifdef NDEBUG
  const char* const kind = "optimised";
#else
  const char* const kind = "with debug checks";
#endif
#ifdef HALFLIFE_WITH_CUDA
  const char* const cuda = ", with CUDA";
#else
  const char* const cuda = ", without CUDA";
#endif
  return {Verdict::kOk, "this build", Concat("compiler ", __VERSION__, ", ", kind, cuda)};
}

// It is loaded on first use, so it can be missing where the program starts.
Finding SentencePiece(const Scene& scene) {
  Finding finding{Verdict::kOk, "sentencepiece", HALFLIFE_SENTENCEPIECE_VERSION};
  try {
    data::LoadSentencePieceBridge();
    finding.text +=
        Concat(", ", FindMapped(scene.Read(scene.proc / "self/maps"), "libsentencepiece.so"));
  } catch (const Error& error) {
    finding.verdict = Verdict::kWarn;
    finding.text += Concat(" was built with, but ", error.message());
    finding.remedy = "apt-get install libsentencepiece0; the bytes tokenizer works without it";
  }
  return finding;
}

const char* FileOf(const std::string& name) {
  struct Row {
    const char *name, *file;
  };
  constexpr Row kRows[] = {{"MPI library", "libmpi.so"},
                           {"CUDA runtime", "libcudart.so"},
                           {"CUDA driver", "libcuda.so"},
                           {"NCCL", "libnccl.so"}};
  for (const Row& row : kRows) {
    if (name == row.name) return row.file;
  }
  return "?";  // begins no file's name
}

}  // namespace

std::vector<Finding> CheckLibraries(const Scene& scene) {
  std::vector<Finding> findings = {Compiler()};
  const std::string maps = scene.Read(scene.proc / "self/maps");
  findings.push_back(Judge({"LibTorch", TORCH_VERSION, "", "libtorch_cpu.so"}, maps));
  for (const dist::LibraryVersion& library : dist::CommunicationLibraries()) {
    if (library.built.empty() && library.loaded.empty()) {
      findings.push_back({Verdict::kWarn, library.name, "not here: no GPU can be used",
                          "install the NVIDIA driver; nvidia-smi then lists the GPUs"});
      continue;
    }
    findings.push_back(
        Judge({library.name, library.built, library.loaded, FileOf(library.name)}, maps));
  }
  const data::Hdf5Version hdf5 = data::GetHdf5Version();
  findings.push_back(Judge({"HDF5", hdf5.built, hdf5.loaded, "libhdf5"}, maps));
  const std::string protobuf = google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
  findings.push_back(Judge({"protobuf", protobuf, "", "libprotobuf.so"}, maps));
  findings.push_back(SentencePiece(scene));
  return findings;
}

// A launcher of another MPI starts every rank as a world of one.
std::vector<Finding> CheckMpirun(const Scene&) {
  const std::filesystem::path path = FindProgram("mpirun");
  if (path.empty()) {
    return {{Verdict::kWarn, "mpirun", "not found: one rank only",
             "apt-get install openmpi-bin (launch/setup does)"}};
  }
  const CommandOutput output = RunTool("mpirun --version");
  const std::string version = ParseVersion(output.text);
  Finding finding{Verdict::kOk, "mpirun", Concat(version, ", ", path.string())};
  const std::string library = dist::CommunicationLibraries().front().loaded;
  if (output.exit_code != 0 || version.empty()) {
    finding.verdict = Verdict::kFail;
    finding.text = Concat(path.string(), " --version ends with exit code ", output.exit_code, ": ",
                          output.text.substr(0, output.text.find('\n')));
    finding.remedy = "apt-get install --reinstall openmpi-bin";
  } else if (output.text.find("Open MPI") == std::string::npos ||
             ParseVersion(library) != version) {
    finding.verdict = Verdict::kWarn;
    finding.text += Concat(", while the library is ", library);
    finding.remedy = "put the mpirun of that library first in PATH";
  }
  return {finding};
}

}  // namespace halflife::cli::doctor
