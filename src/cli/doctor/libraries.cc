// Checks the libraries of the build and those that are loaded.

#include <ATen/Version.h>
#include <google/protobuf/stubs/common.h>
#include <google/protobuf/stubs/logging.h>
#include <torch/version.h>

#include <CLI/Version.hpp>
#include <climits>

#include "cli/doctor/checks.h"
#include "cli/doctor/system_files.h"
#include "core/error.h"
#include "data/library_versions.h"
#include "data/sentencepiece_bridge.h"
#include "dist/rank_context.h"

namespace halflife::cli::doctor {
namespace {

// Returns the prefix of the file name of the shared library, or null if the library has only
// headers.
const char* FileOf(const std::string& name) {
  struct Row {
    const char *name, *file;
  };
  constexpr Row kRows[] = {{"LibTorch", "libtorch_cpu.so"},  {"MPI library", "libmpi.so"},
                           {"CUDA runtime", "libcudart.so"}, {"CUDA driver", "libcuda.so"},
                           {"NCCL", "libnccl.so"},           {"HDF5", "libhdf5"},
                           {"PCRE2", "libpcre2-8.so"},       {"utf8proc", "libutf8proc.so"},
                           {"zstd", "libzstd.so"},           {"zlib", "libz.so"},
                           {"protobuf", "libprotobuf.so"},   {"xxHash", "libxxhash.so"},
                           {"spdlog", "libspdlog.so"},       {"fmt", "libfmt.so"}};
  for (const Row& row : kRows) {
    if (name == row.name) return row.file;
  }
  return nullptr;
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

// Checks SentencePiece. It is loaded on first use, so the program also starts without it.
Finding SentencePiece(const CheckInputs& inputs) {
  Finding finding{Verdict::kOk, "sentencepiece", HALFLIFE_SENTENCEPIECE_VERSION};
  try {
    data::LoadSentencePieceBridge();
    finding.text +=
        Concat(", ", FindMapped(inputs.Read(inputs.proc / "self/maps"), "libsentencepiece.so"));
  } catch (const Error& error) {
    finding.verdict = Verdict::kWarn;
    finding.text += Concat(" was used by the build, but ", error.message());
    finding.remedy = "apt-get install libsentencepiece0; the bytes tokenizer works without it";
  }
  return finding;
}

// protobuf's error message. The log handler throws it before protobuf ends the program.
struct Refusal {
  std::string words;
};
[[noreturn]] void Refuse(google::protobuf::LogLevel, const char*, int, const std::string& words) {
  throw Refusal{words};
}

}  // namespace

std::string LoadedTorch() {
  const std::string config = at::show_config();
  const size_t version = config.find("TORCH_VERSION=");
  return version == std::string::npos ? "" : ParseVersion(std::string_view(config).substr(version));
}

// protobuf has no function for its version, but its error for an impossible version contains it.
std::string LoadedProtobuf() {
  namespace pb = google::protobuf;
  std::string words;
  pb::LogHandler* const handler = pb::SetLogHandler(&Refuse);
  try {
    pb::internal::VerifyVersion(GOOGLE_PROTOBUF_VERSION, INT_MAX, __FILE__);
  } catch (const Refusal& refusal) {
    words = refusal.words;
  }
  pb::SetLogHandler(handler);
  const size_t version = words.find("installed version");
  return version == std::string::npos ? "" : ParseVersion(std::string_view(words).substr(version));
}

Finding JudgeLibrary(const LibraryVersion& library, const std::string& maps) {
  const char* const file = FileOf(library.name);
  const std::string path = file == nullptr ? "" : FindMapped(maps, file);
  Finding finding{Verdict::kOk, library.name,
                  library.loaded.empty() ? library.built : library.loaded};
  if (!library.loaded.empty() && !library.built.empty() && library.loaded != library.built) {
    finding.verdict = Verdict::kWarn;
    finding.text += Concat(" is loaded, but the build used ", library.built);
    finding.remedy = "launch/setup, then build again";
  }
  if (!path.empty()) {
    finding.text += Concat(", ", path);
  } else if (!library.built.empty()) {
    finding.text += ", compiled in";
  }
  return finding;
}

std::vector<Finding> CheckLibraries(const CheckInputs& inputs) {
  std::vector<Finding> findings = {Compiler()};
  const std::string maps = inputs.Read(inputs.proc / "self/maps");
  const auto judge = [&](const std::vector<LibraryVersion>& libraries) {
    for (const LibraryVersion& library : libraries) {
      findings.push_back(JudgeLibrary(library, maps));
    }
  };
  judge({{"LibTorch", TORCH_VERSION, LoadedTorch()}});
  for (const LibraryVersion& library : dist::CommunicationLibraries()) {
    if (library.built.empty() && library.loaded.empty()) {
      findings.push_back({Verdict::kWarn, library.name, "not found: GPUs cannot be used",
                          "install the NVIDIA driver; nvidia-smi then lists the GPUs"});
    } else {
      judge({library});
    }
  }
  judge(data::DataLibraries());
  findings.push_back(SentencePiece(inputs));
  judge({{"protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION),
          LoadedProtobuf()}});
  judge(CoreLibraries());
  judge({{"CLI11", CLI11_VERSION, ""}});
  return findings;
}

// Checks that the `mpirun` in PATH belongs to the MPI library of this program. With another MPI's
// launcher, every rank would start as a world of size 1.
std::vector<Finding> CheckMpirun(const CheckInputs&) {
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
    finding.text += Concat(", but the MPI library is ", library);
    finding.remedy = "put the mpirun of that library first in PATH";
  }
  return {finding};
}

}  // namespace halflife::cli::doctor
